"""python benchmarks/large_rows.py FROM.csv TO.csv [--rows 5000000] [--seed 0]

Writes many rows: those of a file with the columns text and label, over and over, each time with other noise. A word
is left out, two neighbours change places, and a random number stands at the end, so that no two rows are quite equal.
Texts without spaces lose and swap characters. The suffix of TO names its format: .csv, .tsv or .jsonl, each also with
.gz.
"""

import argparse
import csv
import gzip
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

FEWEST_PARTS = 4


def noisy_rows(rows: list[tuple[str, str]], count: int, seed: int) -> Iterator[tuple[str, str]]:
    """Yields `count` pairs of a text with noise and its label, in another order in each round."""
    rng = random.Random(seed)
    order = list(range(len(rows)))
    for number in range(count):
        place = number % len(rows)
        if place == 0:
            rng.shuffle(order)
        text, label = rows[order[place]]
        yield noisy(text, rng), label


def noisy(text: str, rng: random.Random) -> str:
    """The text without one of its words, two others swapped, and with a number behind it."""
    between = " " if " " in text else ""
    parts = text.split() if between else list(text)
    if len(parts) >= FEWEST_PARTS:
        del parts[int(rng.random() * len(parts))]
        left = int(rng.random() * (len(parts) - 1))
        parts[left], parts[left + 1] = parts[left + 1], parts[left]
    return f"{between.join(parts)} {int(rng.random() * 1_000_000)}"


def main() -> int:
    """Reads the rows and writes the many."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with open(given.source, encoding="utf-8", newline="") as file:
        rows = [(row["text"], row["label"]) for row in csv.DictReader(file)]
    name = given.target.name.removesuffix(".gz")
    zipped = name != given.target.name
    opened = (
        gzip.open(given.target, "wt", compresslevel=1, encoding="utf-8", newline="")
        if zipped
        else open(given.target, "w", encoding="utf-8", newline="")
    )
    made = noisy_rows(rows, given.rows, given.seed)
    with opened as file:
        if name.endswith(".jsonl"):
            for text, label in made:
                file.write(json.dumps({"text": text, "label": label}, ensure_ascii=False) + "\n")
        else:
            writer = csv.writer(file, delimiter="\t" if name.endswith(".tsv") else ",", lineterminator="\n")
            writer.writerow(("text", "label"))
            writer.writerows(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
