"""From a file of sentences to tags and scores, through the commands."""

import json
import types

import numpy as np
import pytest

from kmha.bundle.bundle import Bundle
from tests.command_runs import TINY, call
from tests.tagged_sentences import tagged_sentences, write_conll
from training.evaluate import main as evaluate
from training.fit import main as fit
from training.predict import main as predict

FLAGS = [*TINY, "--task=tag", "--text.min-frequency=1", "--tag.character-dim=8"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tags")
    train = write_conll(folder / "train.conll", tagged_sentences(60, seed=0))
    test = write_conll(folder / "test.conll", tagged_sentences(20, seed=1))
    outcome = call(
        fit,
        *FLAGS,
        "--train.epochs=12",
        "--train.batch-rows=4",
        "--train.patience=12",
        "--optimizer.ema-decay=0.9",
        f"--data.train={train}",
        f"--data.test={test}",
        "--out",
        folder / "run",
    )
    return types.SimpleNamespace(outcome=outcome, folder=folder / "run", train=train, test=test)


def test_metrics_of_the_fit(run):
    assert run.outcome.status == 0, run.outcome.err
    line = run.outcome.json
    assert (line["judged_on"], line["rows"]) == ("test", 20)
    assert {"span_f1", "precision", "recall", "macro_f1", "token_accuracy", "loss"} <= set(line)
    assert line["span_f1"] > 0.8
    assert {"span_f1", "token_accuracy"} <= set(line["baseline"])
    metrics = json.loads((run.folder / "metrics.json").read_text("utf-8"))
    assert metrics["linear_path"]["span_f1"] > 0.5
    low, high = metrics["test"]["intervals"]["span_f1"]
    assert low <= line["span_f1"] <= high and "errors" in metrics["test"]
    bundle = Bundle.load(run.folder)
    assert (bundle.task, bundle.model.scheme, bundle.details["given_scheme"]) == ("tag", "bio", "bio")
    assert set(bundle.labels) == {"B-LOC", "B-PER", "I-PER", "O"}


def test_evaluate_returns_the_scores_of_the_fit(run):
    scores = call(evaluate, run.folder, "--data", run.test).json
    for name in ("span_f1", "token_accuracy", "precision", "recall", "rows", "words"):
        assert scores[name] == run.outcome.json[name]
    assert scores["loss"] == pytest.approx(run.outcome.json["loss"], abs=1e-5)


def test_jsonl_and_conll_have_equal_scores(run, tmp_path):
    lines = [json.dumps({"words": words, "tags": tags}) for words, tags in tagged_sentences(20, seed=1)]
    (tmp_path / "test.jsonl").write_text("\n".join(lines), "utf-8")
    scores = call(evaluate, run.folder, "--data", tmp_path / "test.jsonl").json
    assert scores["span_f1"] == run.outcome.json["span_f1"]


def test_spans_and_words_have_equal_scores(run, tmp_path):
    """For texts that are split into the same words."""
    rows = []
    for words, tags in tagged_sentences(20, seed=1):
        starts = np.cumsum([0] + [len(word) + 1 for word in words]).tolist()
        spans: list[list] = []
        for word, tag in enumerate(tags):
            if tag.startswith("B-"):
                spans.append([starts[word], starts[word] + len(words[word]), tag[2:]])
            elif tag.startswith("I-"):
                spans[-1][1] = starts[word] + len(words[word])
        rows.append(json.dumps({"text": " ".join(words), "spans": spans}))
    (tmp_path / "test.jsonl").write_text("\n".join(rows), "utf-8")
    scores = call(evaluate, run.folder, "--data", tmp_path / "test.jsonl").json
    assert scores["span_f1"] == run.outcome.json["span_f1"]


def test_predict_takes_texts_and_words(run):
    raw = call(predict, run.folder, stdin=b"the ferry waits in Nordhafen.\n\nAnna Birke sings\n")
    assert raw.status == 0, raw.err
    predictions = [json.loads(line) for line in raw.out.splitlines()]
    assert predictions[0]["words"][-2:] == ["Nordhafen", "."] and predictions[1]["words"] == []
    assert len(predictions) == 3 and set(predictions[0]) == {
        "words", "starts", "ends", "tags", "probabilities", "spans"
    }  # fmt: skip
    split = call(predict, run.folder, "--words", stdin=b"the ferry waits\tin  Nordhafen .\n")
    (prediction,) = [json.loads(line) for line in split.out.splitlines()]
    assert prediction["words"] == predictions[0]["words"] and prediction["tags"] == predictions[0]["tags"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--top=2"], "--top: expected a run that classifies or matches texts, got a tagger"),
        (["--rank=x.txt"], "--rank: expected a run that matches pairs, got a tagger"),
    ],
)
def test_flags_of_other_tasks_raise(run, flags, words):
    outcome = call(predict, run.folder, *flags, stdin=b"")
    assert outcome.status == 2 and words in outcome.err


@pytest.mark.parametrize(
    ("name", "content", "flags", "words"),
    [
        ("a.conll", "x\tO\ny\n", [], "a.conll:2: "),
        ("a.conll", "x\tO\n", ["--data.label-column=3"], "--data.label-column: expected one of 1, 2, got 3"),
        ("a.conll", "\n\n", [], "a.conll: "),
        ("a.jsonl", '{"words": [], "tags": []}\n', [], "a.jsonl:1: words must hold a word, got none"),
        ("a.jsonl", '{"text": "old", "spans": [[0, 9, "X"]]}\n', [], "a.jsonl:1: spans must be spans of"),
        ("a.conll", "x " * 3, ["--tag.context-width=4"], "--tag.context-width: expected an odd number"),
        ("a.conll", "x " * 3, ["--text.max-length=5"], "--text.max-length: expected 8 or more for sentences"),
    ],
)
def test_invalid_input_gives_one_line(tmp_path, name, content, flags, words):
    (tmp_path / name).write_text(content, "utf-8")
    outcome = call(fit, "--task=tag", f"--data.train={tmp_path / name}", "--out", tmp_path / "run", *flags)
    assert outcome.status == 2 and words in outcome.err, outcome.err
    assert len(outcome.err.strip().splitlines()) == 1 and not (tmp_path / "run").exists()


@pytest.mark.second
def test_sixteen_sentences_are_memorized(tmp_path):
    rng = np.random.default_rng(0)
    sentences = [
        (words, rng.choice(["A", "B", "C"], len(words)).tolist()) for words, _ in tagged_sentences(16, 5)
    ]
    train = write_conll(tmp_path / "train.conll", sentences)
    flags = [
        "--encoder.dropout=0",
        "--encoder.attention-dropout=0",
        "--encoder.token-dropout=0",
        "--tag.dropout=0",
    ]
    flags += ["--train.epochs=60", "--train.patience=60", "--optimizer.ema-decay=0", "--no-baseline"]
    outcome = call(
        fit, *FLAGS, *flags, f"--data.train={train}", f"--data.validation={train}", "--encoder.positions=learned",
        "--text.max-length=32", "--out", tmp_path / "run",
    )  # fmt: skip
    # Texts of the validation file are dropped from training.
    assert outcome.status == 2 and "got only texts of the test or validation set" in outcome.err
    upper = write_conll(
        tmp_path / "upper.conll", [([word.upper() for word in words], tags) for words, tags in sentences]
    )
    flags.append("--tag.characters=False")
    outcome = call(
        fit, *FLAGS, *flags, "--text.lower-case=True", f"--data.train={train}", f"--data.validation={upper}",
        "--encoder.positions=learned", "--text.max-length=32", "--out", tmp_path / "run",
    )  # fmt: skip
    assert outcome.status == 0, outcome.err
    assert outcome.json["token_accuracy"] > 0.97
