"""Trains a small English run on generated sentences, in about a minute."""

import contextlib
import csv
import logging
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from kmha.bundle.manifest import MANIFEST
from kmha.errors import InputError

logger = logging.getLogger("kmha")

SUBJECTS = {
    "cooking": ["the baker", "our cook", "my grandmother", "the chef from Lyon", "a kitchen boy"],
    "sailing": ["the captain", "an old sailor", "the harbour pilot", "our skipper", "the crew"],
    "gardening": ["the gardener", "my neighbour", "a botanist", "the farmer's daughter", "our landlord"],
}
VERBS = {
    "cooking": ["kneads", "roasts", "seasons", "serves", "tastes", "burns"],
    "sailing": ["moors", "steers", "repairs", "anchors", "launches", "loses"],
    "gardening": ["prunes", "waters", "plants", "harvests", "weeds", "sells"],
}
OBJECTS = {
    "cooking": ["fresh bread", "a lentil soup", "the salted fish", "two cakes", "crème brûlée"],
    "sailing": ["the ferry", "a wooden boat", "the mainsail", "two yachts", "the lighthouse tender"],
    "gardening": ["the rose bushes", "a cherry tree", "the herb beds", "two hedges", "wild strawberries"],
}
ADVERBS = [
    "before sunrise",
    "at seven o'clock",
    "on Sunday",
    "in the rain",
    "without a word",
    "as always",
    "today",
]
TEMPLATES = [
    "{who} {does} {what} {when}.",
    "{when}, {who} {does} {what}!",
    "Why is it that {who} {does} {what} {when}?",
]
TRAIN_ROWS, TEST_ROWS = 1200, 200
MIX_PROBABILITY = 0.6
SETTINGS = (
    "--text.max-length=64",
    "--encoder.hidden-dim=64",
    "--encoder.intermediate-dim=128",
    "--encoder.ngram-buckets=1009",
    "--encoder.ngram-dim=16",
    "--train.epochs=3",
    "--optimizer.learning-rate=0.003",
)


def generate_sentences(count: int, seed: int) -> list[tuple[str, str]]:
    """Generates texts with labels; the same seed gives the same texts."""
    rng = random.Random(seed)
    rows = []
    for number in range(count):
        label = sorted(SUBJECTS)[number % len(SUBJECTS)]
        # Some words belong to another label, so that no prediction is certain.
        verb, noun = (
            rng.choice(sorted(SUBJECTS)) if rng.random() < MIX_PROBABILITY else label for _ in range(2)
        )
        words = {"who": SUBJECTS[label], "does": VERBS[verb], "what": OBJECTS[noun], "when": ADVERBS}
        chosen = {name: rng.choice(values) for name, values in words.items()}
        text = rng.choice(TEMPLATES).format(**chosen)
        rows.append((text[0].upper() + text[1:], label))
    return rows


def train_sample_run(folder: Path) -> tuple[Path, Path]:
    """Returns the run folder and its test rows; trains the run if it is missing.

    Raises:
        InputError: Training failed.
    """
    run, data = folder / "model", folder / "test.csv"
    if (run / MANIFEST).is_file() and data.is_file():
        return run, data
    from training.fit import main

    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "train.csv", generate_sentences(TRAIN_ROWS, 1))
    _write(data, generate_sentences(TEST_ROWS, 2))
    logger.info("training a small English run")
    files = [f"--data.train={folder / 'train.csv'}", f"--data.test={data}", f"--out={run}", "--overwrite"]
    # The metrics that training prints are not output of this command.
    with contextlib.redirect_stdout(sys.stderr):
        status = main([*files, *SETTINGS])
    if status:
        raise InputError(f"{run}: training of the small run failed")
    return run, data


def _write(path: Path, rows: Sequence[tuple[str, str]]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
