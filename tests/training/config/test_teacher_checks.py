import json
from pathlib import Path

import pytest

from kmha.errors import InputError
from training.config.config import DataSection, DistillSection, FitConfig
from training.config.validation import check_teacher, check_teacher_labels, teacher_origins
from training.tasks.classify import ClassifyTask
from training.tasks.match.task import MatchTask
from training.tasks.tag.task import TagTask

KINDS = {"classify": {"multi_label": False}, "match": {"target": "binary"}, "tag": {"scheme": "bio"}}


def write_run(folder: Path, task: str, labels: list[str], **values) -> Path:
    """Writes the file of a run that is read before TensorFlow is imported."""
    folder.mkdir()
    manifest = {"format": 1, "task": task, "labels": labels, "thresholds": None, "text": {}, "files": {}}
    (folder / "bundle.json").write_text(json.dumps({**manifest, **KINDS[task], **values}))
    return folder


def config_of(task: str = "classify", match: MatchTask = MatchTask(), **distill) -> FitConfig:  # noqa: B008
    data = DataSection(train=Path("pairs.csv"))
    return FitConfig(task=task, data=data, match=match, distill=DistillSection(**distill))  # pyright: ignore


@pytest.mark.parametrize(
    ("name", "value"),
    [("hidden_states", 1.0), ("attention", 0.1), ("texts", Path("a")), ("cache", Path("b"))],
)
def test_distillation_settings_require_a_teacher(name, value):
    with pytest.raises(InputError) as caught:
        check_teacher(config_of(**{name: value}))
    flag = name.replace("_", "-")
    assert str(caught.value) == f"--distill.{flag}: expected --distill.teacher with it, got none"
    check_teacher(config_of(temperature=9.0))


def test_a_teacher_of_another_task_is_refused(tmp_path):
    run = write_run(tmp_path / "run", "match", ["score"])
    with pytest.raises(InputError) as caught:
        check_teacher(config_of(teacher=run))
    assert str(caught.value) == (
        f"--distill.teacher {run}: expected a classifier for --task classify, got a matcher"
    )


def test_the_teacher_must_be_a_run_folder(tmp_path):
    with pytest.raises(
        InputError, match=r"^--distill.teacher .*/none: .*expected a run folder with bundle.json"
    ):
        check_teacher(config_of(teacher=tmp_path / "none"))


def test_a_loss_over_all_pairs_of_a_batch_cannot_have_a_teacher(tmp_path):
    run = write_run(tmp_path / "run", "match", ["score"])
    task = MatchTask(form="bi", loss="contrastive")
    with pytest.raises(InputError, match="^--match.loss: expected one that scores each pair by itself"):
        check_teacher(config_of("match", task, teacher=run))


def test_the_cache_must_be_a_folder(tmp_path):
    run = write_run(tmp_path / "run", "classify", ["a", "b"])
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"^--distill.cache .*/file: expected a folder, got a file"):
        check_teacher(config_of(teacher=run, cache=tmp_path / "file"))
    check_teacher(config_of(teacher=run, cache=tmp_path / "new"))


MANY = [f"label {number:02}" for number in range(20)]


@pytest.mark.parametrize(
    ("labels", "expected", "message"),
    [
        (["a", "b"], ["a", "c"], "expected a model of the labels of t.csv, a, c, got a, b"),
        (["b", "a"], ["a", "b"], None),
        (MANY[1:], MANY[:-1], "got one that lacks label 00 and has label 19"),
        (MANY, MANY[:14], "got one that lacks nothing else and has label 14, label 15, label 16"),
        (MANY[:1], MANY, "lacks label 01, label 02"),
    ],
)
def test_labels_of_the_teacher_must_be_those_of_the_rows(tmp_path, labels, expected, message):
    config = config_of(teacher=write_run(tmp_path / "run", "classify", labels))
    if message is None:
        check_teacher_labels(config, ClassifyTask(), expected, "t.csv")
        return
    with pytest.raises(InputError) as caught:
        check_teacher_labels(config, ClassifyTask(), expected, "t.csv")
    assert str(caught.value).startswith("--distill.teacher") and message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "task", "message"),
    [
        (
            "classify",
            ClassifyTask(multi_label=True),
            "expected a model of several labels a row as in t.csv, got one of one",
        ),
        (
            "match",
            MatchTask(target="graded"),
            "expected a model of a graded target as in t.csv, got one of a binary target",
        ),
        (
            "tag",
            TagTask(scheme="none"),
            "expected a model of tags that spell no spans as in t.csv, got one of tags spelt bio",
        ),
    ],
)
def test_the_teacher_must_predict_what_the_rows_have(tmp_path, name, task, message):
    config = config_of(name, teacher=write_run(tmp_path / "run", name, ["a"]))
    with pytest.raises(InputError) as caught:
        check_teacher_labels(config, task, ["a"], "t.csv")
    assert message in str(caught.value)


def test_without_a_teacher_nothing_is_checked():
    check_teacher_labels(FitConfig(), ClassifyTask(), ["a"], "t.csv")
    assert teacher_origins(DistillSection()) == {}


def test_a_run_records_the_hash_of_its_teacher(tmp_path):
    run = write_run(tmp_path / "run", "classify", ["a", "b"])
    before = teacher_origins(DistillSection(teacher=run))
    assert before["teacher"]["name"] == str(run) and len(before["teacher"]["sha256"]) == 64
    (run / "bundle.json").write_text((run / "bundle.json").read_text() + " ")
    assert teacher_origins(DistillSection(teacher=run)) != before
