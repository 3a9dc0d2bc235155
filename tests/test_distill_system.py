"""Distillation through the commands: each task with a teacher, also on texts without labels."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest

from kmha.bundle.bundle import Bundle
from kmha.bundle.manifest import MANIFEST, sha256
from tests.bundles import make_bundle, make_pair_bundle, make_tagger_bundle
from tests.command_runs import NO_DROPOUT, TINY, call, news_rows, refused, write_csv
from tests.pair_rows import ranking_rows
from tests.tagged_sentences import tagged_sentences, write_conll
from training.fit import main as fit

LABELS = ("sport", "food", "money")
FLAGS = [*TINY, *NO_DROPOUT, "--no-baseline"]
OTHER_TASKS = [flag for flag in FLAGS if not flag.startswith("--classify.")]


def save(bundle: Bundle, folder: Path) -> Path:
    bundle.save(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A teacher with another order of labels, rows, and texts without labels, one of which is a test row."""
    folder = tmp_path_factory.mktemp("distill")
    save(make_bundle(LABELS), folder / "teacher")
    write_csv(folder / "train.csv", news_rows(45, seed=1))
    write_csv(folder / "test.csv", news_rows(12, seed=2))
    texts = [text for text, _ in (*news_rows(20, seed=3), news_rows(12, seed=2)[0])]
    (folder / "texts.txt").write_text("\n".join(texts))
    return folder


def data_flags(folder: Path) -> list[str]:
    return [f"--data.train={folder}/train.csv", f"--data.test={folder}/test.csv"]


def test_distilled_run_reports_its_teacher_and_can_be_repeated(folder, tmp_path):
    teacher = folder / "teacher"
    flags = [
        *data_flags(folder),
        f"--distill.teacher={teacher}",
        f"--distill.texts={folder / 'texts.txt'}",
        f"--distill.cache={tmp_path / 'cache'}",
        *FLAGS,
    ]
    first = call(fit, *flags, "--out", tmp_path / "one")
    assert first.status == 0, first.err
    assert "20 texts without labels\n" in first.err
    assert "1 texts without labels dropped: they are also in the validation or test rows" in first.err
    train_rows = int(first.err.split(" training, ")[0].split()[-1])
    assert f"teacher: {train_rows + 20} rows predicted in " in first.err
    metrics = json.loads((tmp_path / "one" / "metrics.json").read_text())
    assert f"teacher {metrics['teacher']['accuracy']:.4f}" in first.err
    # It is evaluated with its own order of labels.
    bundle = Bundle.load(teacher)
    rows = news_rows(12, seed=2)
    predictions = bundle.predict([text for text, _ in rows])
    right = [prediction["label"] == label for prediction, (_, label) in zip(predictions, rows, strict=True)]
    assert metrics["teacher"]["accuracy"] == pytest.approx(np.mean(right))
    noted = json.loads((tmp_path / "one" / MANIFEST).read_text())["data"]
    assert noted["teacher"] == {"name": str(teacher), "sha256": sha256(teacher / MANIFEST)}
    assert noted["texts"]["sha256"] == sha256(folder / "texts.txt")

    recorded = tmp_path / "one" / "config.toml"
    assert tomllib.loads(recorded.read_text())["distill"]["weight"] == 0.9
    again = call(fit, "--config", recorded, "--out", tmp_path / "two")
    assert again.status == 0, again.err
    assert f"predictions for {train_rows + 20} rows found in {tmp_path / 'cache'}" in again.err
    assert first.json | {"run": ""} == again.json | {"run": ""}
    # Other texts or another teacher would have other predictions.
    assert len(list((tmp_path / "cache").iterdir())) == 1


TEXTS = [text for text, _ in news_rows(16, seed=9)]


def train_student(folder: Path, teacher: Bundle, *flags: object) -> Bundle:
    """Trains a student on teacher predictions only, for sixteen rows with uninformative labels."""
    save(teacher, folder / "teacher")
    rows = [(text, teacher.labels[number % 3]) for number, text in enumerate(TEXTS)]
    write_csv(folder / "train.csv", rows)
    # The same for a model that lower-cases: the overfitted rows are evaluated.
    write_csv(folder / "validation.csv", [(text.upper(), label) for text, label in rows])
    outcome = call(
        fit,
        f"--data.train={folder / 'train.csv'}",
        f"--data.validation={folder / 'validation.csv'}",
        f"--distill.teacher={folder / 'teacher'}",
        *FLAGS,
        "--distill.weight=1",
        "--text.min-frequency=1",
        "--train.epochs=30",
        "--train.patience=30",
        "--train.batch-rows=4",
        "--optimizer.learning-rate=0.02",
        "--optimizer.ema-decay=0",
        *flags,
        "--out",
        folder / "run",
    )
    assert outcome.status == 0, outcome.err
    # The last weights: the labels would select others.
    return Bundle.load(folder / "run")


@pytest.mark.second
def test_student_overfits_teacher_predictions_without_labels(tmp_path, monkeypatch):
    from training.engine import loop

    # The validation rows have labels, which must not select the weights: the last weights are saved.
    monkeypatch.setattr(loop.RunState, "restore_best", lambda self: None)
    teacher = make_bundle(LABELS)
    head = teacher.model.head
    # Confident predictions that differ between texts.
    head.kernel.assign(10 * head.kernel)
    head.bias.assign(head.bias - np.log(teacher.probabilities(TEXTS)).mean(axis=0))
    student = train_student(tmp_path, teacher)
    assert student.labels == sorted(LABELS)
    order = [LABELS.index(label) for label in student.labels]
    expected, found = teacher.probabilities(TEXTS)[:, order], student.probabilities(TEXTS)
    assert expected.std(axis=0).min() > 0.1
    np.testing.assert_allclose(found, expected, atol=0.1)


@pytest.mark.second
def test_matcher_is_distilled(tmp_path):
    save(make_pair_bundle(), tmp_path / "teacher")
    header = ("text_a", "text_b", "label", "query_id")
    rows = [tuple(map(str, row)) for row in ranking_rows(16, 3, seed=4)]
    train = write_csv(tmp_path / "train.csv", rows, header)
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(f"{a}\t{b}" for a, b, *_ in ranking_rows(4, 2, seed=5)))
    flags = [
        f"--data.train={train}",
        "--task=match",
        f"--distill.teacher={tmp_path / 'teacher'}",
        *OTHER_TASKS,
    ]
    outcome = call(
        fit, *flags, f"--distill.texts={texts}", "--match.loss=listwise", "--out", tmp_path / "run"
    )
    assert outcome.status == 0, outcome.err
    assert "8 texts without labels\n" in outcome.err and "map: " in outcome.err
    assert set(json.loads((tmp_path / "run" / "metrics.json").read_text())["teacher"]) >= {"map", "accuracy"}


@pytest.mark.second
@pytest.mark.parametrize("inside", [pytest.param(False, marks=pytest.mark.slow), True])
def test_tagger_is_distilled(tmp_path, inside):
    bundle = make_tagger_bundle(("O", "I-PER", "B-PER", "B-LOC"), characters=True)
    save(bundle, tmp_path / "teacher")
    train = write_conll(tmp_path / "train.conll", tagged_sentences(40, seed=1))
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(" ".join(words) for words, _ in tagged_sentences(9, seed=2)))
    flags = [f"--data.train={train}", "--task=tag", f"--distill.teacher={tmp_path / 'teacher'}", *OTHER_TASKS]
    more = [f"--distill.texts={texts}"]
    if inside:
        vocabulary = tmp_path / "teacher" / "vocab.txt"
        more = ["--distill.hidden-states=1", "--distill.attention=1", "--encoder.hidden-dim=8"]
        more += [f"--text.vocabulary={vocabulary}", "--text.lower-case=True"]
    outcome = call(fit, *flags, *more, "--out", tmp_path / "run")
    assert outcome.status == 0, outcome.err
    scores = json.loads((tmp_path / "run" / "metrics.json").read_text())["teacher"]
    assert 0 <= scores["token_accuracy"] < 0.9


def test_invalid_teachers_are_refused(folder, monkeypatch):
    monkeypatch.chdir(folder)
    teacher = ["--distill.teacher", "teacher"]
    write_csv(folder / "two.csv", [row for row in news_rows(30, seed=1) if row[1] != "food"])
    write_csv(folder / "bodies.csv", [("a",), ("b",)], ("body",))
    cases = [
        (["--data.train=two.csv", *teacher], "--distill.teacher teacher: expected a model of the labels of two.csv"),
        (
            ["--data.train=train.csv", "--distill.teacher", "none"],
            "--distill.teacher none: none: expected a run folder",
        ),
        (["--data.train=train.csv", *teacher, "--distill.texts", "bodies.csv"], "bodies.csv: expected column 'text'"),
        (["--data.train=train.csv", *teacher, "--distill.texts", "none.txt"], "none.txt: expected a file"),
        (["--data.train=train.csv", "--distill.weight", "1.5"], "--distill.weight: expected at least 0 and at most 1"),
        (["--data.train=train.csv", "--distill.temperature", "0"], "--distill.temperature: expected above 0, got 0.0"),
        (["--data.train=train.csv", "--text.prune"], "--text.prune: expected --text.vocabulary or"),
    ]  # fmt: skip
    for arguments, message in cases:
        assert refused(folder, fit, *arguments).startswith(message), arguments


@pytest.mark.second
def test_pruned_vocabulary_has_the_tokens_of_the_rows(folder, tmp_path):
    flags = [
        *data_flags(folder),
        *FLAGS,
        f"--text.vocabulary={folder / 'teacher' / 'vocab.txt'}",
        "--text.prune",
    ]
    outcome = call(fit, *flags, "--out", tmp_path / "run")
    assert outcome.status == 0, outcome.err
    whole = (folder / "teacher" / "vocab.txt").read_text("utf-8").split("\n")[:-1]
    pruned = (tmp_path / "run" / "vocab.txt").read_text("utf-8").split("\n")[:-1]
    assert f"{len(pruned)} of {len(whole)} tokens of the vocabulary retained" in outcome.err
    assert len(pruned) < len(whole) and [token for token in whole if token in set(pruned)] == pruned
