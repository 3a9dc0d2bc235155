"""Small data sets and settings with which every command runs in seconds."""

import contextlib
import csv
import io
import json
import os
import random
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TINY = [
    "--text.max-length=16",
    "--text.vocabulary-size=200",
    "--encoder.hidden-dim=16",
    "--encoder.num-layers=1",
    "--encoder.num-heads=2",
    "--encoder.intermediate-dim=16",
    "--encoder.ngram-buckets=101",
    "--encoder.ngram-dim=4",
    "--train.epochs=2",
    "--train.buckets=1",
    "--train.batch-rows=16",
    "--optimizer.learning-rate=0.01",
    # Plots take longer than such a training; tests/training/reporting requests reports.
    "--no-report",
]
# Without randomness: a resumed run gives the same results.
NO_DROPOUT = [
    "--encoder.dropout=0",
    "--encoder.attention-dropout=0",
    "--encoder.token-dropout=0",
    "--classify.dropout=0",
]
WORDS = {
    "food": ["bread", "soup", "salt", "cook", "oven"],
    "money": ["bank", "stock", "price", "trade", "loan"],
    "sport": ["ball", "goal", "team", "match", "coach"],
}
EVERYWHERE = ["the", "a", "old", "new", "of"]


ROOT = Path(__file__).resolve().parent.parent


def clean_environment() -> dict[str, str]:
    """The environment of a user's process: importing TensorFlow here has set a log level for all children."""
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    return {**environment, "PYTHONPATH": str(ROOT)}


def run_script(code: str, *arguments: object, stdin: str | None = None, **settings: Any) -> str:
    """Returns what Python code prints in a user's process; `settings` are of `subprocess.run`."""
    result = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        input=stdin,
        capture_output=True,
        text=True,
        **{"env": clean_environment(), **settings},
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def news_rows(count: int, seed: int) -> list[tuple[str, str]]:
    """Texts whose words give their one label away."""
    rng = random.Random(seed)
    labels = sorted(WORDS)
    return [
        (" ".join(rng.choice([*WORDS[label], *EVERYWHERE]) for _ in range(rng.randint(5, 9))), label)
        for label in (labels[number % len(labels)] for number in range(count))
    ]


def topic_rows(count: int, seed: int) -> list[tuple[str, list[str]]]:
    """Texts on no, one or several topics at once."""
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        labels = [label for label in sorted(WORDS) if rng.random() < 0.4]
        words = [rng.choice(WORDS[label]) for label in labels for _ in range(2)]
        rows.append((" ".join([*words, rng.choice(EVERYWHERE), rng.choice(EVERYWHERE)]), labels))
    return rows


def write_csv(path: Path, rows: Sequence[Sequence[str]], header: Sequence[str] = ("text", "label")) -> Path:
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",").writerows([header, *rows])
    return path


@dataclass(frozen=True)
class Outcome:
    """Exit status and output of a command."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> dict:
        """Its only line on stdout."""
        (line,) = self.out.splitlines()
        return json.loads(line)


def call(main: Callable[[Sequence[str]], int], *arguments: object, stdin: bytes = b"") -> Outcome:
    """Runs a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        _stdin(stdin),
    ):
        status = main([str(argument) for argument in arguments])
    return Outcome(status, out.getvalue(), err.getvalue())


def saved_weights(run: Path) -> dict[str, bytes]:
    """Every array of a run's model, bit by bit."""
    import h5py

    found: dict[str, bytes] = {}
    with zipfile.ZipFile(run / "model.keras") as archive:
        content = io.BytesIO(archive.read("model.weights.h5"))
    with h5py.File(content) as file:
        file.visititems(
            lambda name, item: found.update(
                {name: item[()].tobytes()} if isinstance(item, h5py.Dataset) else {}
            )
        )
    assert found
    return found


def refused(folder: Path, main: Callable[[Sequence[str]], int], *arguments: str, stdin: bytes = b"") -> str:
    """Returns the error message of a command that must fail and change no file."""
    before = sorted(folder.rglob("*"))
    outcome = call(main, *arguments, stdin=stdin)
    assert outcome.status == 2
    assert outcome.out == ""
    (line,) = outcome.err.splitlines()
    assert line.startswith("error: ")
    assert sorted(folder.rglob("*")) == before
    return line.removeprefix("error: ")


@contextlib.contextmanager
def _stdin(data: bytes):
    import sys

    before = sys.stdin
    sys.stdin = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8")
    try:
        yield
    finally:
        sys.stdin = before
