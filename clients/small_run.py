"""A small English run, for those who have none of their own yet: sentences made of real words, trained in a minute."""

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

WHO = {
    "cooking": ["the baker", "our cook", "my grandmother", "the chef from Lyon", "a kitchen boy"],
    "sailing": ["the captain", "an old sailor", "the harbour pilot", "our skipper", "the crew"],
    "gardening": ["the gardener", "my neighbour", "a botanist", "the farmer's daughter", "our landlord"],
}
DOES = {
    "cooking": ["kneads", "roasts", "seasons", "serves", "tastes", "burns"],
    "sailing": ["moors", "steers", "repairs", "anchors", "launches", "loses"],
    "gardening": ["prunes", "waters", "plants", "harvests", "weeds", "sells"],
}
WHAT = {
    "cooking": ["fresh bread", "a lentil soup", "the salted fish", "two cakes", "crème brûlée"],
    "sailing": ["the ferry", "a wooden boat", "the mainsail", "two yachts", "the lighthouse tender"],
    "gardening": ["the rose bushes", "a cherry tree", "the herb beds", "two hedges", "wild strawberries"],
}
WHEN = [
    "before sunrise",
    "at seven o'clock",
    "on Sunday",
    "in the rain",
    "without a word",
    "as always",
    "today",
]
SAYS = [
    "{who} {does} {what} {when}.",
    "{when}, {who} {does} {what}!",
    "Why is it that {who} {does} {what} {when}?",
]
TRAIN_ROWS, TEST_ROWS = 1200, 200
MIXED = 0.6
SETTINGS = (
    "--text.max-length=64",
    "--encoder.hidden-dim=64",
    "--encoder.intermediate-dim=128",
    "--encoder.ngram-buckets=1009",
    "--encoder.ngram-dim=16",
    "--train.epochs=3",
    "--optimizer.learning-rate=0.003",
)


def sentences(count: int, seed: int) -> list[tuple[str, str]]:
    """Texts with their labels, the same for the same seed.

    Args:
        count: How many.
        seed: Of the choice of words.
    """
    rng = random.Random(seed)
    rows = []
    for number in range(count):
        label = sorted(WHO)[number % len(WHO)]
        # Now and then words of another label, so that no answer is quite sure.
        does, what = (rng.choice(sorted(WHO)) if rng.random() < MIXED else label for _ in range(2))
        words = {"who": WHO[label], "does": DOES[does], "what": WHAT[what], "when": WHEN}
        chosen = {name: rng.choice(values) for name, values in words.items()}
        text = rng.choice(SAYS).format(**chosen)
        rows.append((text[0].upper() + text[1:], label))
    return rows


def small_run(folder: Path) -> tuple[Path, Path]:
    """The run folder and its test rows, made if they are not there.

    Args:
        folder: To hold both.

    Raises:
        InputError: Training failed.
    """
    run, data = folder / "model", folder / "test.csv"
    if (run / MANIFEST).is_file() and data.is_file():
        return run, data
    from training.fit import main

    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "train.csv", sentences(TRAIN_ROWS, 1))
    _write(data, sentences(TEST_ROWS, 2))
    logger.info("training a small English run")
    files = [f"--data.train={folder / 'train.csv'}", f"--data.test={data}", f"--out={run}", "--overwrite"]
    # Its answer is no part of this command's.
    with contextlib.redirect_stdout(sys.stderr):
        status = main([*files, *SETTINGS])
    if status:
        raise InputError(f"{run}: training the small run failed")
    return run, data


def _write(path: Path, rows: Sequence[tuple[str, str]]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
