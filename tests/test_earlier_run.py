"""A run and its exports, written before the modules moved into packages, load and predict the same.

Version 0.1.0 wrote the folder at commit 4ffea79 for 90 synthetic rows. It has the run, its SavedModel, TFLite and ONNX
files, and the predictions of each for texts.txt.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from export.predictors.artifacts import find_artifact, load
from kmha.bundle.bundle import Bundle
from tests.command_runs import call
from training.evaluate import main as evaluate
from training.predict import main as predict

EARLIER = Path(__file__).parent / "earlier_run"
TEXTS = (EARLIER / "texts.txt").read_bytes()
# The order of additions depends on the processor.
TOLERANCE = 1e-6


def test_the_run_predicts_the_same():
    outcome = call(predict, EARLIER / "run", stdin=TEXTS)
    assert outcome.status == 0, outcome.err
    found = [json.loads(line) for line in outcome.out.splitlines()]
    expected = [json.loads(line) for line in (EARLIER / "predictions.jsonl").read_text().splitlines()]
    assert [row["label"] for row in found] == [row["label"] for row in expected]
    for one, other in zip(found, expected, strict=True):
        assert one["probabilities"] == pytest.approx(other["probabilities"], abs=TOLERANCE)


def test_the_run_has_the_same_scores():
    outcome = call(evaluate, EARLIER / "run", "--data", EARLIER / "test.csv")
    assert outcome.status == 0, outcome.err
    expected = json.loads((EARLIER / "evaluation.json").read_text())
    names = [name for name, value in expected.items() if isinstance(value, float)]
    assert len(names) > 8
    found = outcome.json
    assert {name: found[name] for name in names} == pytest.approx({name: expected[name] for name in names})


@pytest.mark.parametrize("artifact", ["served", "model.tflite", "model.onnx"])
def test_the_exports_predict_the_same(artifact):
    format_name = {"served": "savedmodel"}.get(artifact, artifact.rpartition(".")[2])
    predictor = load(find_artifact(EARLIER / artifact))
    found = predictor.probabilities(TEXTS.splitlines())
    expected = np.load(EARLIER / f"{format_name}.npy", allow_pickle=False)
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)


def test_the_run_is_saved_again_with_the_same_weights(tmp_path):
    shutil.copytree(EARLIER / "run", tmp_path / "run")
    bundle = Bundle.load(tmp_path / "run")
    bundle.save(tmp_path / "again")
    again = Bundle.load(tmp_path / "again")
    for one, other in zip(bundle.model.weights, again.model.weights, strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
