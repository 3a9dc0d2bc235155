"""python -m clients.check [RUN --data FILE] [--rows 200] [--allow-missing] [--folder build/clients]

Exports a run in every format, runs each export in third-party programs and compares the predictions: a table
on stdout. Exit status 1 if a client's predictions differ from the run's, or if a client could not run.
"""  # noqa: D415

import contextlib
import csv
import logging
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from export.checks import check_single_texts
from kmha.bundle.manifest import MANIFEST
from kmha.errors import InputError
from training.cli.bounds import Count
from training.cli.parser import FAILED, parse, run

logger = logging.getLogger("kmha")

Client = Literal["browser", "mediapipe", "triton", "grpc"]
CLIENTS: tuple[Client, ...] = ("browser", "mediapipe", "triton", "grpc")
FILL = Path(__file__).resolve().parents[1] / "examples" / "browser" / "fill.py"


@dataclass(frozen=True)
class CheckConfig:
    """Runs an exported run in third-party programs and compares the predictions."""

    run: Annotated[Path | None, tyro.conf.Positional] = None
    """Run folder of training.fit; default: train a small English run on generated rows."""
    data: Path | None = None
    """Labeled rows to predict: .csv, .tsv or .jsonl, also .gz; required with RUN."""
    rows: Count = 200
    """Number of rows to predict, spread evenly over the file."""
    clients: tuple[Client, ...] = CLIENTS
    """Clients to run."""
    allow_missing: bool = False
    """Report a client that cannot run on this machine, but do not fail."""
    folder: Path = Path("build/clients")
    """Folder for the exports, the environments and the small run."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    return run(lambda: _check(parse(CheckConfig, argv, "python -m clients.check")))


def _check(config: CheckConfig) -> int:
    if (config.run is None) != (config.data is None):
        present = "RUN" if config.data is None else "--data"
        raise InputError(f"expected RUN and --data, or neither, got {present} alone")
    if config.run is not None:
        check_single_texts(config.run, "clients.check")
    from kmha.quiet import import_tensorflow

    import_tensorflow()
    from clients.comparison import any_failed, export_run, result_table
    from clients.processes import load_program
    from kmha.bundle.bundle import Bundle

    folder = config.folder.resolve()
    if config.run is None or config.data is None:
        run_folder, data = train_sample_run(folder / "run")
    else:
        run_folder, data = config.run, config.data
    bundle = Bundle.load(run_folder)
    exported = export_run(bundle, sample_texts(bundle, data, config.rows), folder, load_program(FILL).fill)
    results = []
    for result in _results(exported, config.clients):
        logger.info(f"{result.client}: {result.problem or 'agrees'}")
        results.append(result)
    print(result_table(results))
    return FAILED if any_failed(results, config.allow_missing) else 0


def _results(exported, clients: Sequence[str]) -> Iterator[Any]:
    from clients.browser import browser_results
    from clients.python_clients import grpc_result, mediapipe_result, triton_result

    if "mediapipe" in clients:
        yield mediapipe_result(exported)
    if "browser" in clients:
        yield from browser_results(exported)
    if "triton" in clients:
        yield triton_result(exported)
    if "grpc" in clients:
        yield grpc_result(exported)


def sample_texts(bundle, data: Path, rows: int) -> list[str]:
    """At most `rows` texts of a file, spread evenly over it."""
    import numpy as np

    from training.io.tables import read_rows

    column = bundle.details.get("columns", {}).get("text", "text")
    texts = [str(row.values[column]) for row in read_rows(data, [column])]
    chosen = np.linspace(0, len(texts) - 1, min(rows, len(texts))).round().astype(int)
    return [texts[index] for index in chosen]


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
    """The folder of a small English run and its test rows; trains it in about a minute if it is missing."""
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


if __name__ == "__main__":
    sys.exit(main())
