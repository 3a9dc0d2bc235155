"""Rows of a CSV file, and the loop of requests; for programs in any environment."""

import csv
import json
import random
import sys
import time
from collections.abc import Callable, Iterator


def read_rows(path: str) -> tuple[list[str], list[int], int]:
    """Texts, label ids and the number of labels, in a shuffled order that is the same for all."""
    with open(path, newline="", encoding="utf-8") as file:
        rows = [(row["text"], row["label"]) for row in csv.DictReader(file)]
    random.Random(0).shuffle(rows)
    names = sorted({label for _, label in rows})
    return [text for text, _ in rows], [names.index(label) for _, label in rows], len(names)


def answer(train: Callable[[Iterator[int]], int]) -> None:
    """Trains whenever a number of steps comes in on stdin; says how many real tokens and seconds that took."""
    for line in sys.stdin:
        began = time.perf_counter()
        tokens = train(iter(range(int(line))))
        print(json.dumps({"tokens": tokens, "seconds": time.perf_counter() - began}), flush=True)
