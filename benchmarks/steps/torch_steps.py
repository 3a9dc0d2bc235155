"""Fine-tunes MiniLM as Hugging Face's users do: random batches, padded to the longest of each, AdamW."""

import itertools
import os
import sys

import torch  # pyright: ignore[reportMissingImports]  (an environment of its own)
import transformers  # pyright: ignore[reportMissingImports]
from rows import answer, read_rows  # pyright: ignore[reportMissingImports]  (beside this file)


def main(path: str, batch: int, length: int, precision: str, model_folder: str) -> None:
    """Answers requests."""
    texts, labels, classes = read_rows(path)
    torch.set_num_threads(os.cpu_count() or 1)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_folder)
    ids = tokenizer(texts, truncation=True, max_length=length)["input_ids"]
    model = transformers.BertForSequenceClassification.from_pretrained(model_folder, num_labels=classes)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, weight_decay=0.01)
    starts = itertools.cycle(range(0, len(texts) - batch + 1, batch))

    def train(steps) -> int:
        tokens = 0
        for _ in steps:
            first = next(starts)
            rows = tokenizer.pad({"input_ids": ids[first : first + batch]}, return_tensors="pt")
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
                loss = model(**rows, labels=torch.tensor(labels[first : first + batch])).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            tokens += int(rows["attention_mask"].sum())
        return tokens

    answer(train)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
