import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from export.answer import main
from export.predictors import artifacts as processes
from export.predictors.artifacts import Artifact, find_artifact, predict_isolated, read_texts, write_texts
from kmha.errors import InputError
from tests.bundles import EDGE_CASES, TEXTS, one_label_bundle
from tests.command_runs import ROOT, call
from training.io.json_subprocess import Crashed

# Modules that are None cannot be imported, so the process runs without them.
WITHOUT_TENSORFLOW = """
import sys
sys.modules["tensorflow"] = sys.modules["keras"] = sys.modules["tensorflow_text"] = None
from export.answer import main
sys.exit(main(sys.argv[1:]))
"""


def test_texts_of_any_bytes_are_exchanged(tmp_path):
    texts = [
        *EDGE_CASES,
        *(text.encode() for text in TEXTS),
        b"a\nb\r\nc",
        b'"quoted" \\ text',
        bytes(range(256)),
    ]
    write_texts(tmp_path / "texts.jsonl", texts)
    assert read_texts(tmp_path / "texts.jsonl") == texts


def test_lines_are_predicted_without_tensorflow(onnx_files):
    lines = [*(text.encode() for text in TEXTS), b"", b"\xff bread"]
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT_TENSORFLOW, str(onnx_files["one label"])],
        input=b"\n".join(lines) + b"\n",
        capture_output=True,
        cwd=ROOT,
    )
    assert result.returncode == 0 and result.stderr == b"", result.stderr
    found = np.load(io.BytesIO(result.stdout), allow_pickle=False)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, one_label_bundle().probabilities(lines), atol=1e-5)


def test_no_lines_give_no_predictions(onnx_files, tmp_path):
    assert predict_isolated(find_artifact(onnx_files["one label"]), []).probabilities.shape == (0, 3)


def test_wrong_input_of_the_process_is_an_input_error(tmp_path):
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    (tmp_path / "bad.tokenizer.json").write_text("[]")
    with pytest.raises(InputError, match="bad.tokenizer.json: must be a JSON object, got list") as error:
        predict_isolated(find_artifact(tmp_path / "bad.onnx"), [b""])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("import sys; print('first\\nlast', file=sys.stderr); sys.exit(3)", "status 3; last line: last"),
        ("import os; os.abort()", "status -6; last line: nothing"),
        ("import sys; sys.exit(2)", "status 2; last line: nothing"),
    ],
)
def test_a_crash_of_the_process_is_one_line(tmp_path, monkeypatch, program, message):
    """As a runtime that crashes on a file."""
    started = subprocess.run

    def other(command, **settings):
        return started([sys.executable, "-c", program], **settings)

    monkeypatch.setattr(processes.subprocess, "run", other)
    with pytest.raises(Crashed, match=message) as error:
        predict_isolated(Artifact(tmp_path / "x.onnx", "onnx"), [b""])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [("a.onnx", "onnxruntime", "kmha[onnx]"), ("a.tflite", "ai_edge_litert", "kmha[litert]")],
)
def test_a_missing_runtime_is_named_with_what_installs_it(tmp_path, monkeypatch, name, package, extra):
    (tmp_path / name).touch()
    monkeypatch.setattr("importlib.util.find_spec", lambda module: None if module == package else object())
    outcome = call(main, tmp_path / name)
    assert outcome.status == 2 and outcome.out == ""
    expected = f"expected the package {package.replace('_', '-')}, got none; pip install '{extra}'"
    assert outcome.err == f"error: {tmp_path / name}: {expected}\n"


def test_another_savedmodel_is_rejected(tmp_path):
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "saved_model.pb").write_bytes(b"no model")
    outcome = call(main, tmp_path)
    assert outcome.status == 2 and outcome.err.count("\n") == 1
    assert "expected a SavedModel, got another folder" in outcome.err


def test_the_process_finds_this_project_from_any_folder(onnx_files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    predictions = predict_isolated(find_artifact(Path(onnx_files["one label"])), [b"bread"])
    assert predictions.facts["labels"] == one_label_bundle().labels
    features = one_label_bundle().preprocessor(["bread"])
    assert predictions.ids == features["token_ids"].numpy().tolist()
