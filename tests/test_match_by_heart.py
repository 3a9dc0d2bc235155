"""A matcher memorizes sixteen rows with each loss, through the commands."""

import random

import pytest

from tests.command_runs import EVERYWHERE, TINY, WORDS, call, write_csv
from training.fit import main as fit

PAIRS, TRIPLETS = ("text_a", "text_b", "label", "query_id"), ("anchor", "positive", "negative", "query_id")
NO_DROPOUT = [
    "--encoder.dropout=0",
    "--encoder.attention-dropout=0",
    "--encoder.token-dropout=0",
    "--match.dropout=0",
]
FLAGS = [
    *TINY,
    *NO_DROPOUT,
    "--task=match",
    "--no-baseline",
    "--train.epochs=25",
    "--train.patience=25",
    "--train.batch-rows=4",
    "--optimizer.learning-rate=0.02",
    "--optimizer.ema-decay=0",
    "--text.min-frequency=1",
]


def random_texts(count: int) -> list[str]:
    """Random texts, independent of the labels."""
    rng = random.Random(0)
    words = [*EVERYWHERE, *sum(WORDS.values(), [])]
    return [" ".join(rng.sample(words, 5)) for _ in range(count)]


def sixteen_rows(kind: str) -> list[tuple[str, ...]]:
    """Pairs on their own with a label of a kind, or four candidates to each of four queries."""
    texts = random_texts(48)
    if kind == "lists":
        labels = ["1000", "0010", "0101", "0001"]
        return [(texts[q], texts[4 + 4 * q + i], labels[q][i], str(q)) for q in range(4) for i in range(4)]
    if kind == "triplets":
        return [(texts[q], texts[8 + q], texts[16 + q], str(q)) for q in range(8)]
    labels = {"binary": "01", "classes": "xyz", "numbers": "01234567"}[kind]
    rng = random.Random(1)
    return [(texts[2 * i], texts[2 * i + 1], rng.choice(labels), str(i // 4)) for i in range(16)]


@pytest.mark.second
@pytest.mark.parametrize(
    ("kind", "flags", "metric"),
    [
        pytest.param("binary", ["--match.symmetric", "--match.best-by=accuracy"], "accuracy", id="cross-entropy"),
        pytest.param("classes", ["--match.form=joint"], "accuracy", id="classes", marks=pytest.mark.slow),
        pytest.param("numbers", ["--match.best-by=spearman"], "spearman", id="squares", marks=pytest.mark.slow),
        pytest.param("triplets", [], "map", id="triplet", marks=pytest.mark.slow),
        pytest.param("lists", ["--match.loss=listwise"], "map", id="listwise", marks=pytest.mark.slow),
        pytest.param("lists", ["--match.loss=contrastive", "--match.form=bi"], "map", id="contrastive"),
    ],
)  # fmt: skip
def test_each_loss_memorizes_sixteen_rows(tmp_path, kind, flags, metric):
    rows, header = sixteen_rows(kind), TRIPLETS if kind == "triplets" else PAIRS
    train = write_csv(tmp_path / "train.csv", rows, header)
    # The model lower-cases: its validation rows are the memorized training rows.
    evaluated = [tuple(text.upper() for text in row[:-2]) + row[-2:] for row in rows]
    if kind == "triplets":
        evaluated = [tuple(text.upper() for text in row) for row in rows]
    validation = write_csv(tmp_path / "validation.csv", evaluated, header)
    files = [f"--data.train={train}", f"--data.validation={validation}"]
    fitted = call(fit, *files, *FLAGS, *flags, "--out", tmp_path / "run")
    assert fitted.status == 0, fitted.err
    assert fitted.json["rows"] == 16
    assert fitted.json[metric] > 0.97
