"""From a file of texts to a masked language model, its scores and its predictions, through the commands."""

import gzip
import json
import random
import signal
import types

import numpy as np
import pytest

from kmha.bundle.bundle import Bundle
from kmha.text.vocabulary import SPECIAL_TOKENS
from tests.command_runs import TINY, call, refused, write_csv
from training.engine.loop import Loop
from training.evaluate import main as evaluate
from training.fit import main as fit
from training.predict import main as predict

FLAGS = [*TINY, "--task=masked-lm", "--text.min-frequency=1", "--encoder.attention-dropout=0"]
ANIMALS, PLACES = ["cat", "dog", "cow", "hen"], ["house", "yard", "field", "roof"]
KINDS = ["red", "big", "old", "new", "wet", "dry", "shy", "odd"]


def sentences(count: int, seed: int) -> list[str]:
    """The animal determines its place; all other words are random."""
    rng = random.Random(seed)
    places = dict(zip(ANIMALS, PLACES, strict=True))
    lines = set()
    while len(lines) < count:
        animal = rng.choice(ANIMALS)
        one, other = rng.choice(KINDS), rng.choice(KINDS)
        lines.add(f"today the {one} {animal} sleeps in the {other} {places[animal]} again")
    return rng.sample(sorted(lines), count)


def write_lines(path, lines):
    data = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    lines = sentences(160, 0)
    train = write_lines(folder / "train.txt.gz", ["", *lines[:50], "  ", *lines[50:120]])
    test = write_lines(folder / "test.txt", lines[120:])
    flags = [
        *FLAGS,
        f"--data.train={train}",
        f"--data.test={test}",
        "--text.max-length=40",
        "--train.epochs=30",
        "--train.patience=30",
        "--train.batch-rows=4",
        "--optimizer.learning-rate=0.01",
        "--optimizer.ema-decay=0.9",
    ]
    outcome = call(fit, *flags, "--out", folder / "run")
    return types.SimpleNamespace(outcome=outcome, folder=folder / "run", train=train, test=test)


def test_fit_prints_scores(run):
    assert run.outcome.status == 0, run.outcome.err
    assert "2 rows have an empty text (skipped)" in run.outcome.err
    line = run.outcome.json
    assert (line["judged_on"], line["rows"]) == ("test", 40)
    assert line["perplexity"] == pytest.approx(np.exp(line["loss"]))
    assert line["masked_tokens"] == line["baseline"]["masked_tokens"] > 40
    assert line["masked_accuracy"] > 2 * line["baseline"]["masked_accuracy"]
    assert line["loss"] < line["baseline"]["loss"]
    metrics = json.loads((run.folder / "metrics.json").read_text("utf-8"))
    low, high = metrics["test"]["intervals"]["masked_accuracy"]
    assert low <= line["masked_accuracy"] <= high
    assert metrics["data"]["empty_texts"] == 2 and metrics["data"]["train_rows"] == 108
    bundle = Bundle.load(run.folder)
    assert (bundle.task, bundle.labels) == ("masked-lm", [])
    assert bundle.details["masking"] == {"share": 0.15, "whole_word": False, "packed": True}


def test_evaluate_gives_the_scores_of_the_fit(run, tmp_path):
    scores = call(evaluate, run.folder, "--data", run.test).json
    for name in ("rows", "masked_tokens", "masked_accuracy"):
        assert scores[name] == run.outcome.json[name]
    assert scores["perplexity"] == pytest.approx(run.outcome.json["perplexity"], rel=1e-4)
    # Labels of a table are ignored.
    rows = [(line, "x") for line in run.test.read_text("utf-8").splitlines()]
    table = write_csv(tmp_path / "test.csv", rows)
    assert call(evaluate, run.folder, "--data", table).json == scores


def test_predict_fills_masks(run):
    texts = b"today the big [MASK] sleeps in the old yard again\nnothing\n[MASK] [MASK]\n"
    outcome = call(predict, run.folder, "--top", 3, stdin=texts)
    assert outcome.status == 0, outcome.err
    first, second, third = map(json.loads, outcome.out.splitlines())
    (mask,) = first["masks"]
    assert list(mask["probabilities"].values()) == sorted(mask["probabilities"].values(), reverse=True)
    assert len(mask["probabilities"]) == 3 and mask["token"] in "today the sleeps in again".split() + ANIMALS
    assert second == {"masks": [], "note": "no [MASK] in this text"}
    assert len(third["masks"]) == 2


@pytest.mark.second
@pytest.mark.parametrize(
    ("flags", "vocabulary"),
    [
        (["--masked-lm.whole-word", "--masked-lm.no-packed"], "wordpiece"),
        (["--text.tokenization=char", "--text.max-length=12", "--train.jit=on"], "char"),
    ],
)
def test_masking_options(tmp_path, flags, vocabulary):
    rows = [(text, str(n % 2)) for n, text in enumerate(sentences(24, 2))]
    train = write_csv(tmp_path / "a.tsv", rows)
    flags = [*FLAGS, f"--data.train={train}", "--train.epochs=1", *flags]
    outcome = call(fit, *flags, "--out", tmp_path / "run")
    assert outcome.status == 0, outcome.err
    bundle = Bundle.load(tmp_path / "run")
    assert bundle.preprocessor.tokenization == vocabulary
    assert 0 <= call(evaluate, tmp_path / "run", "--data", train).json["masked_accuracy"] <= 1


@pytest.mark.second
def test_interrupted_run_resumes_to_the_same_scores(tmp_path, monkeypatch):
    train = write_lines(tmp_path / "a.txt", sentences(60, 3))
    flags = [*FLAGS, f"--data.train={train}", "--encoder.dropout=0", "--train.batch-rows=4", "--no-baseline"]
    whole = call(fit, *flags, "--out", tmp_path / "whole")
    assert whole.status == 0, whole.err
    run_batch = Loop._batch

    def stopped(self, batch, last):
        run_batch(self, batch, last)
        if self._progress.batches_done == 7:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Loop, "_batch", stopped)
    assert call(fit, *flags, "--out", tmp_path / "run").status == 130
    monkeypatch.setattr(Loop, "_batch", run_batch)
    resumed = call(fit, *flags, "--out", tmp_path / "run", "--resume")
    assert resumed.status == 0, resumed.err
    for name in ("loss", "masked_accuracy", "masked_tokens"):
        assert resumed.json[name] == pytest.approx(whole.json[name], abs=1e-6)


BAD_FILES = {
    "empty.txt": (b"", "empty.txt: expected one text per line, got an empty file"),
    "blank.txt": (b"\n \n\t\n", "blank.txt: expected one text per line, got only empty lines"),
    "latin.txt": (
        b"good\nb\xe9\n",
        "latin.txt:2: expected UTF-8 text, got byte 0xe9 at position 2 of the line",
    ),
    "zip.txt.gz": (b"no gzip", "zip.txt.gz: expected gzip data"),
    "one.txt": (b"lonely\n", "one.txt: expected rows to hold out for validation, none can be spared"),
    "none.csv": (b"label\nx\n", "none.csv: expected column 'text', got columns label"),
    "list.jsonl": (b'{"text": ["a", "b"]}\n', "list.jsonl:1: text must be one text, got a list"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_invalid_files_are_refused_in_one_line(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    data, message = BAD_FILES[name]
    (tmp_path / name).write_bytes(data)
    assert refused(tmp_path, fit, *FLAGS, "--data.train", name).startswith(message)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--data.label-column=label"], "--data.label-column: expected none for --task masked-lm, got label"),
        (
            ["--data.text-b-column=b"],
            "--data.text-b-column: expected --task match with it, got --task masked-lm",
        ),
        (["--data.text-column=b"], "good.txt: expected column 'b', got columns text"),
        (["--masked-lm.share=1"], "--masked-lm.share: expected above 0 and below 1, got 1.0"),
        (["--task=classify"], "--data.label-column: expected a column label or labels, got text"),
    ],
)
def test_invalid_settings_are_refused_in_one_line(tmp_path, monkeypatch, flags, message):
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "good.txt", sentences(9, 0))
    assert refused(tmp_path, fit, *FLAGS, "--data.train=good.txt", *flags).startswith(message)


def test_texts_without_tokens_are_reported(tmp_path):
    train = write_lines(tmp_path / "a.txt", ["\x01\x02", "\x03", "\x04"])
    (tmp_path / "vocab.txt").write_text("".join(f"{token}\n" for token in (*SPECIAL_TOKENS, "a")))
    flags = [
        f"--data.train={train}",
        f"--text.vocabulary={tmp_path / 'vocab.txt'}",
        "--text.tokenization=char",
    ]
    outcome = call(fit, *FLAGS, *flags, "--out", tmp_path / "run")
    assert outcome.status == 2
    assert outcome.err.splitlines()[-1] == f"error: {train}: expected a text with a token, got none"


def test_evaluate_refuses_invalid_input(run, tmp_path):
    outcome = call(evaluate, run.folder, "--data", run.test, "--label-column", "x")
    assert (outcome.status, outcome.err) == (
        2,
        "error: --label-column: expected a run with labels, got a masked language model\n",
    )
    broken = tmp_path / "run"
    bundle = Bundle.load(run.folder)
    bundle.details["masking"] = {"share": 2}
    bundle.save(broken)
    outcome = call(evaluate, broken, "--data", run.test)
    assert outcome.status == 2 and "masking: expected share, whole_word and packed" in outcome.err
