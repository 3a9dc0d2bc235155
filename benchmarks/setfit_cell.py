"""PYTHON benchmarks/setfit_cell.py CHECKPOINT TRAIN.csv TEST.csv SEED

Trains SetFit with its defaults and one epoch, and prints the test accuracy and the seconds of its training as JSON. It
runs in an environment of its own (`pip install torch setfit sentence-transformers`), for `benchmarks.few_labels`.
"""

import csv
import json
import sys
import tempfile
import time
from pathlib import Path

import datasets
import setfit
import transformers


def main(checkpoint: str, train: str, test: str, seed: str) -> None:
    """Trains and evaluates one model."""
    csv.field_size_limit(2**27)
    transformers.set_seed(int(seed))
    rows = {}
    for name, path in (("train", train), ("test", test)):
        with Path(path).open(newline="", encoding="utf-8") as file:
            rows[name] = [(row["text"], row["label"]) for row in csv.DictReader(file)]
    texts, labels = map(list, zip(*rows["train"], strict=True))
    model = setfit.SetFitModel.from_pretrained(checkpoint)
    with tempfile.TemporaryDirectory() as folder:
        settings = setfit.TrainingArguments(
            output_dir=folder, num_epochs=1, seed=int(seed), report_to="none", save_strategy="no"
        )
        dataset = datasets.Dataset.from_dict({"text": texts, "label": labels})
        trainer = setfit.Trainer(model=model, args=settings, train_dataset=dataset)
        began = time.perf_counter()
        trainer.train()
        seconds = time.perf_counter() - began
    predicted = model.predict([text for text, _ in rows["test"]], use_labels=False)
    equal = [str(found) == label for found, (_, label) in zip(predicted, rows["test"], strict=True)]
    print(json.dumps({"accuracy": sum(equal) / len(equal), "training_seconds": round(seconds, 1)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
