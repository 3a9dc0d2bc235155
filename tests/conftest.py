"""A quiet TensorFlow, the same random seed for every test, and runs that several test files share."""

import functools
import gc
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings

# Its handler writes the log to stderr, for tests of modules that do not import it.
import training.cli.parser  # noqa: F401
from tests.artifact_store import remove_outdated, stored_call
from tests.command_runs import NO_DROPOUT, TINY, Outcome, news_rows, topic_rows, write_csv
from tests.pair_rows import ranking_rows

# Before anything imports TensorFlow.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# XLA's own passes stay on; LLVM's optimization is most of the compile time of graphs that run once.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)

# No deadline: the time of an example depends more on the load of the machine than on the code.
# JAX compiles each new shape, so that an example takes seconds there.
_EXAMPLES = 3 if os.environ.get("KERAS_BACKEND") == "jax" else 10
settings.register_profile("kmha", deadline=None, max_examples=_EXAMPLES, derandomize="CI" in os.environ)
settings.load_profile("kmha")

# A shell starts background commands with SIGINT ignored, and then fits ignore it too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def same_seed():
    """Weights and dropout do not depend on which tests ran before; tests without Keras do not wait for it."""
    if "keras" in sys.modules:
        import keras

        skip_libraries_in_garbage_collections()
        keras.utils.set_random_seed(0)


@functools.cache
def skip_libraries_in_garbage_collections() -> None:
    """TensorFlow's modules hold millions of permanent objects, and its converter starts garbage collections itself."""
    gc.collect()
    gc.freeze()


@dataclass(frozen=True)
class TinyRun:
    """A trained run and what it was trained on."""

    folder: Path
    train: Path
    test: Path
    flags: list[str]
    outcome: Outcome


def pytest_sessionstart(session):
    # Only in the process that starts the others.
    if not hasattr(session.config, "workerinput"):
        remove_outdated()


def stored_run(
    name: str, flags: list[str], write: Callable[[Path, Path], None], fit_test_rows: bool = True
) -> TinyRun:
    """A run that the tests of all processes share.

    Args:
        name: Of the artifact.
        flags: Settings of the fit, besides the data and the run folder; {folder} is replaced by the artifact's folder.
        write: Writes the training and the test rows to two paths.
        fit_test_rows: Whether the fit evaluates the test rows too.
    """
    from training.fit import main

    def arguments(folder: Path) -> list[str]:
        train, test = folder / "train.csv", folder / "test.csv"
        data = [f"--data.train={train}", *([f"--data.test={test}"] if fit_test_rows else [])]
        return [*data, *(flag.format(folder=folder) for flag in flags)]

    def prepare(folder: Path) -> list[str]:
        write(folder / "train.csv", folder / "test.csv")
        return [*arguments(folder), "--out", str(folder / "run")]

    folder, outcome = stored_call(name, main, prepare)
    return TinyRun(folder / "run", folder / "train.csv", folder / "test.csv", arguments(folder), outcome)


@pytest.fixture(scope="session")
def news_run() -> TinyRun:
    """One label a row. The test rows hold an empty text and a label that no training row has."""

    def write(train: Path, test: Path) -> None:
        write_csv(train, [*news_rows(60, seed=1), (" ", "food")])
        write_csv(test, [*news_rows(21, seed=2), ("", "food"), ("rain and sun", "weather")])

    return stored_run("news_run", [*TINY, *NO_DROPOUT], write)


@pytest.fixture(scope="session")
def topics_run() -> TinyRun:
    """Several labels a row, by the name of their column; word vectors; no test rows in the fit."""

    def write(train: Path, test: Path) -> None:
        rows = [(text, "|".join(labels)) for text, labels in topic_rows(80, seed=3)]
        write_csv(train, rows[:60], ("text", "labels"))
        write_csv(test, [*rows[60:], ("rain", "weather|food")], ("text", "labels"))
        vectors = train.with_name("vectors.txt")
        vectors.write_text("2 16\nsoup" + " 0.5" * 16 + "\nunseen" + " 1" * 16 + "\n")

    flags = ["--encoder.vectors={folder}/vectors.txt", *TINY, "--classify.class-weights=balanced"]
    return stored_run("topics_run", flags, write, fit_test_rows=False)


def _ranked_run(name: str, *flags: str) -> TinyRun:
    """A matcher of queries with four candidates each. The test rows hold texts without a letter."""

    def write(train: Path, test: Path) -> None:
        rows = [tuple(map(str, row)) for row in ranking_rows(24, 4, seed=4)]
        more = [tuple(map(str, row)) for row in ranking_rows(8, 3, seed=5)]
        odd = [("", "bread", "0", "odd"), ("", "", "1", "odd"), (" ", "!", "0", "lone")]
        header = ("text_a", "text_b", "label", "query_id")
        write_csv(train, [(*row[:3], f"train {row[3]}") for row in rows], header)
        write_csv(test, [*more, *odd], header)

    tiny = TINY if "--encoder.size=none" not in flags else [f for f in TINY if "--encoder" not in f]
    return stored_run(name, ["--task=match", *tiny, *flags], write)


@pytest.fixture(scope="session")
def cross_run() -> TinyRun:
    return _ranked_run("cross_run")


@pytest.fixture(scope="session")
def symmetric_run() -> TinyRun:
    """Two granularities, the same score in either order."""
    flags = ("--match.granularities", "char", "wordpiece", "--match.symmetric")
    return _ranked_run("symmetric_run", *flags)


@pytest.fixture(scope="session")
def no_encoder_run() -> TinyRun:
    """The linear path alone; its few validation rows do not trust a network."""
    return _ranked_run("no_encoder_run", "--encoder.size=none")


@pytest.fixture(scope="session")
def bi_run() -> TinyRun:
    """Vectors, trained with the contrastive loss."""
    return _ranked_run("bi_run", "--match.form=bi", "--match.loss=contrastive", "--no-baseline")
