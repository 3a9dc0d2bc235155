"""The command, on runs whose labels were drawn from softer probabilities than theirs."""

import json
import random
import shutil

import numpy as np
import pytest
from scipy.special import expit, logit, softmax

from kmha.bundle.bundle import Bundle
from kmha.calibration import Calibration, calibrate
from tests.bundles import TEXTS, make_bundle, make_pair_bundle, masked_bundle
from tests.command_runs import call, refused, write_csv
from training import evaluate, predict
from training.calibrate import main

ROWS = 400


def texts() -> list[str]:
    rng, words = random.Random(3), " ".join(TEXTS).split()
    return [" ".join(rng.choices(words, k=rng.randint(1, 9))) for _ in range(ROWS)]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of one label and rows by which its temperature is 3."""
    folder = tmp_path_factory.mktemp("calibrate")
    bundle, rows = make_bundle(), texts()
    # Predictions of random weights are near chance.
    calibrate(bundle.model, Calibration((0.1,), (0.0,)))
    bundle.save(folder / "run")
    (folder / "run" / "metrics.json").write_text("{}")
    found = np.maximum(bundle.probabilities(rows).astype(np.float64), 1e-30)
    soft = softmax(np.log(found) / 3, axis=1)
    drawn = (soft.cumsum(axis=1) > np.random.default_rng(1).random((ROWS, 1))).argmax(axis=1)
    write_csv(folder / "rows.csv", [(text, bundle.labels[i]) for text, i in zip(rows, drawn, strict=True)])
    return folder


@pytest.fixture
def run(made, tmp_path):
    """A copy that the test may change."""
    return shutil.copytree(made / "run", tmp_path / "run")


def test_result_is_printed_and_the_run_is_unchanged(made, run):
    before = sorted((path.name, path.read_bytes()) for path in run.iterdir())
    found = call(main, run, "--data", made / "rows.csv", "--precision", "0.6").json
    assert found["rows"] == ROWS and found["biases"] == [0.0]
    assert found["temperatures"] == [pytest.approx(3, rel=0.3)]
    for better, worse in (("fitted", "run"), ("run", "uncalibrated")):
        assert found[better]["accuracy"] == found[worse]["accuracy"]
        assert found[better]["loss"] <= found[worse]["loss"] and found[better]["ece"] <= found[worse]["ece"]
    assert found["fitted"]["ece"] < 0.5 * found["run"]["ece"]
    assert found["abstention"]["wanted_precision"] == 0.6 <= found["abstention"]["precision"]
    assert sorted((path.name, path.read_bytes()) for path in run.iterdir()) == before


def test_written_run_has_the_printed_calibration(made, run, tmp_path):
    rows = made / "rows.csv"
    before = Bundle.load(run)
    found = call(main, run, "--data", rows, "--precision", "0.75", "--write").json
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]
    assert (run / "metrics.json").exists()
    after = Bundle.load(run)
    assert after.details["calibration"] == {
        "temperatures": found["temperatures"],
        "biases": [0.0],
        "rows": "rows.csv",
    }
    temperature = found["temperatures"][0]
    expected = softmax(np.log(before.probabilities(TEXTS).astype(np.float64)) / temperature, axis=1)
    np.testing.assert_allclose(after.probabilities(TEXTS), expected, rtol=1e-4)
    below = found["abstention"]["abstain_below"]
    assert after.abstain_below == below > 0
    printed = call(predict.main, run, stdin="\n".join(TEXTS).encode()).out.splitlines()
    for prediction in map(json.loads, printed):
        assert prediction["abstained"] == (prediction["probability"] < below)
    scores = call(evaluate.main, run, "--data", rows).json
    assert scores["accuracy"] == found["fitted"]["accuracy"]
    assert scores["ece"] == pytest.approx(found["fitted"]["ece"], abs=1e-3)
    shown = {name: value for name, value in found["abstention"].items() if name != "wanted_precision"}
    assert scores["abstention"] == pytest.approx(shown, abs=1e-6)
    # A second calibration changes nothing, and still reports the uncalibrated scores.
    again = call(main, run, "--data", rows).json
    assert again["temperatures"] == [pytest.approx(temperature, rel=0.02)]
    assert again["uncalibrated"]["ece"] == pytest.approx(found["uncalibrated"]["ece"], abs=1e-3)
    unchanged = call(main, run, "--data", rows, "--no-refit").json
    assert unchanged["temperatures"] == found["temperatures"] and "fitted" not in unchanged


def test_new_temperature_removes_the_old_threshold(made, run):
    bundle = Bundle.load(run)
    bundle.abstain_below = 0.9
    bundle.save(run)
    outcome = call(main, run, "--data", made / "rows.csv", "--write")
    assert "abstain_below removed" in outcome.err
    assert Bundle.load(run).abstain_below is None


def test_unreachable_precision_is_reported(made, run):
    outcome = call(main, run, "--data", made / "rows.csv", "--precision", "0.9999", "--write")
    assert outcome.json["abstention"] == {"wanted_precision": 0.9999, "abstain_below": None}
    assert "no threshold reaches" in outcome.err
    assert Bundle.load(run).abstain_below is None


@pytest.mark.second
def test_calibration_does_not_change_matches(tmp_path):
    bundle = make_pair_bundle()
    bundle.thresholds = [0.4]
    bundle.save(tmp_path / "run")
    words = texts()
    rows = list(zip(words, reversed(words), strict=True))
    found = bundle.probabilities(rows)[:, 0]
    soft = expit(logit(np.clip(found.astype(np.float64), 1e-6, 1 - 1e-6)) / 2 + 0.5)
    true = np.random.default_rng(1).random(ROWS) < soft
    data = [(*row, str(int(match))) for row, match in zip(rows, true, strict=True)]
    path = write_csv(tmp_path / "pairs.csv", data, ("text_a", "text_b", "label"))
    result = call(main, tmp_path / "run", "--data", path, "--write", "--precision", "0.7").json
    after = Bundle.load(tmp_path / "run")
    calibration = Calibration.of(after.details)
    assert after.thresholds == calibration.thresholds([0.4])
    assert result["fitted"]["accuracy"] == result["uncalibrated"]["accuracy"]
    predictions = after.predict(rows)
    assert [each["match"] for each in predictions] == (found >= np.float32(0.4)).tolist()
    confidences = [each["score"] if each["match"] else 1 - each["score"] for each in predictions]
    below = after.abstain_below
    assert below is not None
    clear = [abs(value - below) > 1e-6 for value in confidences]
    assert [each["abstained"] for each, is_clear in zip(predictions, clear, strict=True) if is_clear] == [
        value < below for value, is_clear in zip(confidences, clear, strict=True) if is_clear
    ]


def test_reliability_diagram_is_written(made, run, tmp_path):
    pytest.importorskip("matplotlib")
    outcome = call(main, run, "--data", made / "rows.csv", "--out", tmp_path / "diagram.png")
    assert outcome.status == 0 and (tmp_path / "diagram.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--write", "--no-refit"], "--write: expected something to change"),
        (["--out", "a.gif"], "--out a.gif: expected a file ending in"),
        (["--precision", "1"], "--precision"),
        (["--text-column", "nothing"], "nothing"),
    ],
)
def test_wrong_settings_are_refused(made, run, flags, message):
    assert message in refused(run, main, str(run), "--data", str(made / "rows.csv"), *flags)


def test_models_without_probabilities_of_labels_are_refused(made, tmp_path):
    masked_bundle().save(tmp_path / "language")
    make_pair_bundle(target="graded").save(tmp_path / "graded")
    make_bundle(multi_label=True).save(tmp_path / "several")
    rows = ["--data", str(made / "rows.csv")]
    assert "got a masked language model" in refused(tmp_path, main, str(tmp_path / "language"), *rows)
    assert "got one with a graded target" in refused(tmp_path, main, str(tmp_path / "graded"), *rows)
    message = refused(tmp_path, main, str(tmp_path / "several"), *rows, "--precision", "0.9")
    assert message.startswith("--precision: expected a model with one prediction per row")


def test_training_rows_are_refused(news_run, tmp_path):
    message = refused(tmp_path, main, str(news_run.folder), "--data", str(news_run.train))
    assert message.endswith("expected rows that the run was not trained on, got its training rows")
