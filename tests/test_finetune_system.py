"""From a checkpoint to a classifier, a matcher and a tagger, through the commands."""

import csv

import numpy as np
import pytest

from kmha.bundle.bundle import Bundle
from kmha.pretrained.weights import encoder_variables
from tests.bundles import make_bundle
from tests.command_runs import call
from tests.pair_rows import paraphrase_rows
from tests.tagged_sentences import tagged_sentences, write_conll
from training.cli.parser import toml_flags
from training.config.config import FitConfig
from training.evaluate import main as evaluate
from training.fit import main as fit

SETTINGS = ["--text.max-length=12", "--train.epochs=1", "--train.buckets=1", "--no-baseline"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints") / "before"
    make_bundle(num_layers=2, norm="post", ngram_buckets=0, num_segments=2).save(folder)
    return folder


def write_rows(path, task, seed=0):
    if task == "tag":
        return write_conll(path.with_suffix(".conll"), tagged_sentences(40, seed))
    header = ("text_a", "text_b", "label") if task == "match" else ("text", "label")
    rows = paraphrase_rows(40, seed)
    with open(path.with_suffix(".csv"), "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *(rows if task == "match" else [row[1:] for row in rows])])
    return path.with_suffix(".csv")


def fitted(checkpoint, tmp_path, task, *flags):
    data = write_rows(tmp_path / "rows", task)
    flags = (*SETTINGS, f"--task={task}", f"--data.train={data}", *flags)
    outcome = call(fit, *flags, f"--encoder.pretrained={checkpoint}", "--out", tmp_path / "run")
    assert outcome.status == 0, outcome.err
    return data, outcome


def weights_of(folder):
    (encoder,) = Bundle.load(folder).model.encoders_of(0)
    return {path: variable.numpy() for path, variable in encoder_variables(encoder).items()}


@pytest.mark.parametrize(
    "task", ["classify", *(pytest.param(task, marks=pytest.mark.second) for task in ("match", "tag"))]
)
def test_a_model_starts_from_the_checkpoint(checkpoint, tmp_path, task):
    data, outcome = fitted(checkpoint, tmp_path, task, "--optimizer.learning-rate=1e-12")
    assert f"loaded {checkpoint}" in outcome.err
    before, after = weights_of(checkpoint), weights_of(tmp_path / "run")
    assert before.keys() == after.keys()
    for path, weight in after.items():
        np.testing.assert_allclose(weight, before[path][: len(weight)], atol=1e-6, err_msg=path)
    bundle = Bundle.load(tmp_path / "run")
    assert bundle.details["pretrained"] == str(checkpoint)
    scores = call(evaluate, tmp_path / "run", "--data", data)
    assert scores.status == 0, scores.err


@pytest.mark.second
def test_a_linear_path_without_a_gain_is_left_out(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr("training.linear.weighing.trusted_share", lambda gains: 0.0)
    data, outcome = fitted(checkpoint, tmp_path, "classify")
    assert "linear path: " in outcome.err and "the model is its encoder" in outcome.err
    assert Bundle.load(tmp_path / "run").model.linear is None
    scores = call(evaluate, tmp_path / "run", "--data", data)
    assert scores.status == 0, scores.err


@pytest.mark.second
def test_frozen_blocks_equal_the_checkpoint_and_others_differ(checkpoint, tmp_path):
    fitted(checkpoint, tmp_path, "classify", "--finetune.frozen-layers=1", "--optimizer.learning-rate=0.01")
    before, after = weights_of(checkpoint), weights_of(tmp_path / "run")
    changed = {path for path in after if not np.array_equal(after[path], before[path][: len(after[path])])}
    assert changed and all(path.startswith("block_1/") for path in changed)


@pytest.mark.second
def test_an_encoder_of_fewer_blocks_starts_from_the_last_one(checkpoint, tmp_path):
    flags = ("--encoder.num-layers=1", "--optimizer.learning-rate=1e-12")
    fitted(checkpoint, tmp_path, "classify", *flags)
    before, after = weights_of(checkpoint), weights_of(tmp_path / "run")
    kernel = "feed_forward/expand/kernel"
    np.testing.assert_allclose(after[f"block_0/{kernel}"], before[f"block_1/{kernel}"], atol=1e-6)
    assert f"block_1/{kernel}" not in after


@pytest.mark.second
def test_the_written_settings_rerun_the_job(checkpoint, tmp_path):
    fitted(checkpoint, tmp_path, "classify")
    assert f"--encoder.pretrained={checkpoint}" in toml_flags(tmp_path / "run" / "config.toml", FitConfig)
    outcome = call(fit, "--config", tmp_path / "run" / "config.toml", "--out", tmp_path / "again")
    assert outcome.status == 0, outcome.err
    first, again = weights_of(tmp_path / "run"), weights_of(tmp_path / "again")
    assert all(np.array_equal(first[path], again[path]) for path in first)


@pytest.mark.second
@pytest.mark.parametrize("task", ["classify", "match", pytest.param("tag", marks=pytest.mark.slow)])
def test_a_model_trained_in_bfloat16_is_saved_and_evaluated_in_float32(checkpoint, tmp_path, task):
    (tmp_path / "test").mkdir()
    test = write_rows(tmp_path / "test" / "rows", task, seed=1)
    _, outcome = fitted(checkpoint, tmp_path, task, "--precision=bfloat16", f"--data.test={test}")
    bundle = Bundle.load(tmp_path / "run")
    assert bundle.model.compute_dtype == bundle.model.encoders_of(0)[0].compute_dtype == "float32"
    scores = call(evaluate, tmp_path / "run", "--data", test).json
    assert scores["loss"] == pytest.approx(outcome.json["loss"], abs=1e-5)
