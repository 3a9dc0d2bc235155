"""python benchmarks/large_rows.py FROM.csv TO.csv [--rows 5000000] [--seed 0]

Writes a large file: repeats the rows of a file with the columns text and label, each time with different
noise. The noise removes one word, swaps two adjacent words and appends a random number, so that almost all
rows differ. In texts without spaces it removes and swaps characters. The suffix of TO is the format: .csv,
.tsv or .jsonl, optionally with .gz.
"""

import argparse
import csv
import gzip
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

MIN_PARTS = 4


def noisy_rows(rows: list[tuple[str, str]], count: int, seed: int) -> Iterator[tuple[str, str]]:
    """Yields `count` pairs of noisy text and label, shuffled anew in each round."""
    rng = random.Random(seed)
    order = list(range(len(rows)))
    for number in range(count):
        place = number % len(rows)
        if place == 0:
            rng.shuffle(order)
        text, label = rows[order[place]]
        yield add_noise(text, rng), label


def add_noise(text: str, rng: random.Random) -> str:
    """Removes a word, swaps two others and appends a number."""
    separator = " " if " " in text else ""
    parts = text.split() if separator else list(text)
    if len(parts) >= MIN_PARTS:
        del parts[int(rng.random() * len(parts))]
        left = int(rng.random() * (len(parts) - 1))
        parts[left], parts[left + 1] = parts[left + 1], parts[left]
    return f"{separator.join(parts)} {int(rng.random() * 1_000_000)}"


def main() -> int:
    """Reads the rows and writes the large file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with open(options.source, encoding="utf-8", newline="") as file:
        rows = [(row["text"], row["label"]) for row in csv.DictReader(file)]
    name = options.target.name.removesuffix(".gz")
    is_gzip = name != options.target.name
    output = (
        gzip.open(options.target, "wt", compresslevel=1, encoding="utf-8", newline="")
        if is_gzip
        else open(options.target, "w", encoding="utf-8", newline="")
    )
    generated = noisy_rows(rows, options.rows, options.seed)
    with output as file:
        if name.endswith(".jsonl"):
            for text, label in generated:
                file.write(json.dumps({"text": text, "label": label}, ensure_ascii=False) + "\n")
        else:
            writer = csv.writer(file, delimiter="\t" if name.endswith(".tsv") else ",", lineterminator="\n")
            writer.writerow(("text", "label"))
            writer.writerows(generated)
    return 0


if __name__ == "__main__":
    sys.exit(main())
