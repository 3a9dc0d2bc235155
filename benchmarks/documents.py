"""python -m benchmarks.documents --news FOLDER --filler FOLDER --out FOLDER [--rows 1500] [--test-rows 600]

Trains classifiers on long documents whose label depends on text near the end: unrelated sentences, then two
news rows of one label, then sentences again. Compares truncation, full length and windows: accuracy,
processor time and memory as JSON lines on stdout. Existing runs in --out are reused.

--news holds train.csv and test.csv with the columns text and label; --filler holds train.conll and
test.conll.
"""

import argparse
import csv
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

WORDS_BEFORE, WORDS_AFTER, NEWS = (110, 300), (0, 60), 2
LONGEST = 640
WINDOW = [f"--text.max-length={LONGEST}", "--classify.window=256", "--classify.window-overlap=64"]
SETTINGS = {
    "cut at 128": ["--text.max-length=128"],
    "cut at 256": ["--text.max-length=256"],
    "windows of 256, mean": WINDOW,
    "windows of 256, attention": [*WINDOW, "--classify.window-pooling=attention"],
    "whole": [f"--text.max-length={LONGEST}"],
    "windows of 256, max": [*WINDOW, "--classify.window-pooling=max"],
    "windows of 128, mean": [WINDOW[0], "--classify.window=128", "--classify.window-overlap=32"],
}
# For all settings: the same rows per batch and the same number of epochs.
COMMON = ["--train.epochs=4", "--train.batch-rows=16", "--train.batch-tokens=32768", "--no-report"]


def sentences(path: Path) -> list[str]:
    """The sentences of a CoNLL file, with spaces between words."""
    blocks = path.read_text("utf-8").split("\n\n")
    return [" ".join(line.split("\t")[0] for line in block.splitlines()) for block in blocks if block]


def news(path: Path) -> dict[str, list[str]]:
    """The texts of each label."""
    found: dict[str, list[str]] = {}
    with open(path, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            found.setdefault(row["label"], []).append(row["text"])
    return found


def documents(
    by_label: dict[str, list[str]], filler: list[str], count: int, seed: int
) -> Iterator[tuple[str, str]]:
    """Yields text and label of documents; each news row is used once."""
    rng = random.Random(seed)
    labels = sorted(by_label)
    unused = {label: rng.sample(texts, len(texts)) for label, texts in by_label.items()}

    def filler_sentences(words: int) -> list[str]:
        found: list[str] = []
        while sum(len(each.split()) for each in found) < words:
            found.append(rng.choice(filler))
        return found

    for number in range(count):
        label = labels[number % len(labels)]
        topic = [unused[label].pop() for _ in range(NEWS)]
        before, after = (
            filler_sentences(rng.randint(*WORDS_BEFORE)),
            filler_sentences(rng.randint(*WORDS_AFTER)),
        )
        yield " ".join([*before, *topic, *after]), label


def write(path: Path, rows: Iterator[tuple[str, str]]) -> None:
    """Writes a CSV with the columns text and label."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *rows])


def figures(name: str, run: Path) -> dict:
    """Scores and cost of a finished fit."""
    metrics = json.loads((run / "metrics.json").read_text("utf-8"))
    tokens = metrics["tokens"]["train"]["tokens"]
    epochs = [tokens / epoch["tokens_per_cpu_second"] for epoch in metrics["history"]]
    scores = metrics["test"]
    return {
        "settings": name,
        "accuracy": round(scores["accuracy"], 4),
        "interval": [round(end, 4) for end in scores["intervals"]["accuracy"]],
        "tokens_of_a_text": round(tokens / metrics["tokens"]["train"]["rows"]),
        "cpu_seconds_an_epoch": round(sorted(epochs)[len(epochs) // 2], 1),
        "peak_mib": round(metrics["cost"]["peak_memory_bytes"] / 2**20),
        **({"linear_baseline": round(metrics["baseline"]["accuracy"], 4)} if "baseline" in metrics else {}),
    }


def main() -> int:
    """Generates the documents and trains the models."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("news", "filler", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True, help="folder")
    parser.add_argument("--rows", type=int, default=1500, help="documents to train on")
    parser.add_argument("--test-rows", type=int, default=600, help="documents to evaluate on")
    parser.add_argument(
        "--settings", nargs="*", default=list(SETTINGS), choices=list(SETTINGS), metavar="NAME"
    )
    options, flags = parser.parse_known_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for seed, (part, rows) in enumerate((("train", options.rows), ("test", options.test_rows))):
        path = options.out / f"{part}.csv"
        if not path.exists():
            filler = sentences(options.filler / f"{part}.conll")
            write(path, documents(news(options.news / f"{part}.csv"), filler, rows, seed))
    data = [f"--data.{part}={options.out / part}.csv" for part in ("train", "test")]
    for index, name in enumerate(options.settings):
        run = options.out / name.replace(", ", "-").replace(" ", "-")
        if not (run / "metrics.json").exists():
            # The baseline always uses the full texts, so it is trained once.
            baseline = [] if index == 0 else ["--no-baseline"]
            command = [sys.executable, "-m", "training.fit", *data, f"--out={run}", *COMMON, *baseline]
            subprocess.run([*command, *SETTINGS[name], *flags], check=True, stdout=subprocess.DEVNULL)
        print(json.dumps(figures(name, run)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
