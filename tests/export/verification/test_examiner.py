import numpy as np
import pytest

from export.predictors.artifacts import Artifact, Predictions
from export.verification import examiner as examiner_module
from export.verification.examiner import Examiner, table
from export.verification.expected import ExpectedRows
from export.verification.rows import Rows, read_rows
from tests.bundles import ONE, TEXTS, make_bundle
from tests.command_runs import write_csv
from training.io.examples import ColumnOverrides
from training.io.json_subprocess import Crashed

FACTS = {"quantization": "none", "ops": {"MatMul": 3}, "lengths": None, "labels": None}


@pytest.fixture(scope="module")
def bundle():
    return make_bundle()


@pytest.fixture
def rows(bundle, tmp_path):
    path = write_csv(tmp_path / "rows.csv", [(text, ONE[0]) for text in TEXTS])
    return read_rows(bundle, path, ColumnOverrides(), 4, tmp_path / "scratch")


@pytest.fixture
def artifact(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"12")
    return Artifact(tmp_path / "model.onnx", "onnx")


def test_rows_are_spread_over_the_file_and_named(bundle, rows, tmp_path):
    assert rows.real == 4
    assert rows.texts[:4] == [TEXTS[index].encode() for index in (0, 2, 4, 6)]
    assert rows.place(1) == f"{tmp_path / 'rows.csv'}:4"
    assert rows.place(4) == "row 1 of the run's sample" and rows.compared == 4 + len(bundle.sample)
    assert rows.place(rows.compared) == "edge-case text: empty"


def test_predictions_of_the_run_itself_pass(bundle, rows, artifact, monkeypatch):
    def request(artifact, texts):
        return Predictions(bundle.probabilities(texts), None, {**FACTS, "labels": list(ONE)})

    monkeypatch.setattr(examiner_module, "predict_isolated", request)
    report = Examiner(bundle, rows).report(artifact)
    assert report["passed"] and report["max_difference"] == 0 and report["rows_with_other_ids"] is None


def test_rounding_and_truncation_are_parts_of_the_change(bundle, rows, artifact, monkeypatch):
    expected = ExpectedRows(bundle, rows)
    truncated, _ = expected.truncated_predictions(4)

    def request(artifact, texts):
        # Rounded so that no label is that of the file.
        return Predictions(
            np.roll(truncated, 1, axis=1), None, {**FACTS, "lengths": [4], "quantization": "int8"}
        )

    monkeypatch.setattr(examiner_module, "predict_isolated", request)
    monkeypatch.setattr(examiner_module, "layer_errors_isolated", lambda *_: {})
    monkeypatch.setattr(Rows, "metric", lambda self, labels, found, decision: float(found[0, 0]))
    examiner = Examiner(bundle, rows)
    report = examiner.report(artifact)
    run, truncated_score, found = expected.predictions[0, 0], truncated[0, 0], truncated[0, -1]
    assert run != truncated_score != found
    parts = {
        "accuracy_truncation": truncated_score - run,
        "accuracy_rounding": found - truncated_score,
        "accuracy_change": found - run,
    }
    assert {name: report[name] for name in parts} == pytest.approx(parts)
    header, _, line, *_ = table([report], examiner.metric)
    assert (
        "rounding  truncation" in header
        and f"{truncated_score - run:+.4f}" in line
        and f"{found - truncated_score:+.4f}" in line
    )


def test_other_label_names_fail(bundle, rows, artifact, monkeypatch):
    def request(artifact, texts):
        return Predictions(bundle.probabilities(texts), None, {**FACTS, "labels": list(reversed(ONE))})

    monkeypatch.setattr(examiner_module, "predict_isolated", request)
    monkeypatch.setattr(examiner_module, "layer_errors_isolated", lambda *_: {})
    report = Examiner(bundle, rows).report(artifact)
    assert not report["passed"] and report["failures"] == ["expected the label names of the run, got others"]


def test_wrong_shapes_and_crashes_are_reported_as_failures(bundle, rows, artifact, monkeypatch):
    def crash(artifact, texts):
        raise Crashed("its process ended with status -11, saying: nothing")

    examiner = Examiner(bundle, rows)
    monkeypatch.setattr(examiner_module, "predict_isolated", crash)
    crashed = examiner.report(artifact)
    short = Predictions(np.zeros((2, 3), np.float32), None, FACTS)
    monkeypatch.setattr(examiner_module, "predict_isolated", lambda *_: short)
    incomplete = examiner.report(artifact)
    assert not crashed["passed"] and not incomplete["passed"]
    assert "got [2, 3]" in incomplete["failures"][0]
    lines = table([crashed, incomplete], examiner.metric)
    assert sum(line.endswith("FAIL") for line in lines) == 2
    assert f"{artifact.path}: its process ended with status -11, saying: nothing" in lines
    assert f"{examiner.metric:.4f}" in lines[1]
