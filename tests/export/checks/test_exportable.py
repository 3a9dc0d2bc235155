import pytest

from export import verify
from export.checks.exportable import check_exportable
from export.onnx import __main__ as onnx
from export.savedmodel import __main__ as savedmodel
from export.tflite import __main__ as tflite
from tests.bundles import masked_bundle, one_label_bundle
from tests.command_runs import call


@pytest.mark.parametrize("main", [savedmodel.main, tflite.main, onnx.main, verify.main])
def test_masked_language_models_are_refused_in_one_line(tmp_path, main):
    masked_bundle().save(tmp_path / "run")
    out = tmp_path / {tflite.main: "a.tflite", onnx.main: "a.onnx"}.get(main, "served")
    flags = []
    if main is verify.main:
        out.mkdir()
        (out / "saved_model.pb").touch()
        (tmp_path / "a.csv").write_text("text\na\n")
        flags = ["--data", tmp_path / "a.csv"]
    before = sorted(tmp_path.rglob("*"))
    outcome = call(main, tmp_path / "run", out, *flags)
    assert outcome.status == 2 and not outcome.out
    run = tmp_path / "run"
    assert outcome.err == (
        f"error: {run}: expected a classifier, a matcher or a tagger, got a masked language model;"
        f" start one from it with training.fit --encoder.pretrained {run}\n"
    )
    assert sorted(tmp_path.rglob("*")) == before


def test_other_models_pass(tmp_path):
    one_label_bundle().save(tmp_path / "run")
    check_exportable(tmp_path / "run")
