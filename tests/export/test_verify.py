"""Correct exports pass; broken ones fail, and the wrong layer is named."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from export.onnx.write import write_onnx
from export.savedmodel.endpoints import ClassifierEndpoints, concrete_function
from export.tflite.write import write_tflite
from export.verify import main
from kmha.bundle.bundle import Bundle
from kmha.text.preprocessor import Preprocessor
from kmha.text.vocabulary import Vocabulary
from tests.bundles import TEXTS, make_bundle, one_label_bundle, several_label_bundle
from tests.command_runs import call, write_csv
from tests.export.conftest import unbounded

onnx = pytest.importorskip("onnx")

ROWS = [*TEXTS, *(f"{text} {text} {text}" for text in TEXTS), "bread, bread", "the old harbour", ""]
SUFFIXES = {"savedmodel": "", "tflite": ".tflite", "onnx": ".onnx"}


def rows_file(bundle, path: Path) -> Path:
    """Writes rows labeled by the bundle itself, the last one wrongly."""
    if bundle.multi_label:
        labels = ["|".join(prediction["labels"]) for prediction in bundle.predict(ROWS)]
    else:
        labels = [prediction["label"] for prediction in bundle.predict(ROWS)]
        labels[-1] = next(label for label in bundle.labels if label != labels[-1])
    return write_csv(path, list(zip(ROWS, labels, strict=True)))


def write(bundle, kind: str, folder: Path) -> Path:
    path = folder / f"model{SUFFIXES[kind]}"
    if kind == "savedmodel":
        # With the signature of texts only: the others take most of the time to write.
        served, text = ClassifierEndpoints(bundle), tf.TensorSpec([None], tf.string, "text")
        signatures = {"serving_default": concrete_function(served.predict_text, text)}
        tf.saved_model.save(served, str(path), signatures=signatures)
    elif kind == "onnx":
        write_onnx(bundle, path)
    else:
        write_tflite(bundle, path, [16], "none")
    return path


@pytest.fixture(scope="module")
def deep():
    """A run of two blocks and its rows."""
    return make_bundle(num_layers=2)


@pytest.fixture(scope="module")
def deep_run(deep, tmp_path_factory):
    folder = tmp_path_factory.mktemp("deep")
    deep.save(folder / "run")
    rows_file(deep, folder / "rows.csv")
    return folder


def perturbed(bundle):
    kernel = bundle.model.encoder.blocks[1].feed_forward.trainable_variables[0]
    kernel.assign(kernel * 1.1)
    return bundle


def without_mask(bundle):
    block = bundle.model.encoder.blocks[1]
    whole = block.call
    block.call = lambda inputs, attention_mask=None, **rest: whole(inputs, attention_mask=None, **rest)
    return bundle


def shuffled(bundle):
    """Permutes the tokens, except for the special ones."""
    texts = bundle.preprocessor
    tokens = list(texts.vocabulary.tokens)
    tokens[5:] = np.random.default_rng(1).permutation(np.array(tokens[5:], object)).tolist()
    other = Preprocessor(Vocabulary(tokens), **texts.get_config())
    return Bundle(bundle.model, other, bundle.labels, bundle.thresholds, bundle.details, bundle.sample)


BREAKS = {
    "weights perturbed": (perturbed, "block_1"),
    "mask dropped": (without_mask, "block_1 attention weights"),
    "vocabulary shuffled": (shuffled, "tokenizer"),
}


def broken_copy(how: str, kind: str, folder: Path) -> Path:
    with unbounded():
        return write(BREAKS[how][0](make_bundle(num_layers=2)), kind, folder)


def as_expected(report, layer: str) -> None:
    assert not report["passed"] and report["failures"]
    assert report["first_divergent_layer"] == layer


@pytest.mark.slow
@pytest.mark.parametrize("how", BREAKS)
@pytest.mark.parametrize("kind", SUFFIXES)
def test_a_broken_export_fails_and_its_layer_is_named(deep_run, tmp_path, kind, how):
    path = broken_copy(how, kind, tmp_path)
    outcome = call(main, deep_run / "run", path, "--data", deep_run / "rows.csv")
    assert outcome.status == 1, outcome.err
    (report,) = outcome.json["artifacts"]
    as_expected(report, BREAKS[how][1])


@pytest.mark.second
def test_a_broken_export_of_each_format(deep, deep_run, tmp_path):
    """As the slow test, in one command; a correct export between broken ones passes."""
    correct, without = write(deep, "onnx", tmp_path), broken_copy("mask dropped", "tflite", tmp_path)
    other = broken_copy("vocabulary shuffled", "savedmodel", tmp_path)
    broken = with_kernel(correct, (16, 24), lambda kernel: kernel * np.float32(1.1))
    nan = with_kernel(correct, (16, 3), lambda kernel: kernel * np.float32("nan"))
    paths = [broken, correct, without, nan, other]
    outcome = call(main, deep_run / "run", *paths, "--data", deep_run / "rows.csv")
    assert outcome.status == 1 and not outcome.json["passed"], outcome.err
    reports = outcome.json["artifacts"]
    # The first kernel of both feed-forward networks is another one.
    as_expected(reports[0], "block_0")
    assert reports[1]["passed"]
    as_expected(reports[2], "block_1 attention weights")
    as_expected(reports[3], "logits")
    assert "NaN" in reports[3]["failures"][0] and reports[3]["max_difference"] is None
    as_expected(reports[4], "tokenizer")
    assert "differs first in block_1 attention weights" in outcome.err
    assert sum(line.endswith("FAIL") for line in outcome.err.splitlines()) == 4


def with_kernel(path: Path, shape: tuple[int, int], change) -> Path:
    """A copy of an ONNX file with other weights where they have a shape."""
    model = onnx.load(str(path))
    kernels = [constant for constant in model.graph.initializer if tuple(constant.dims) == shape]
    assert kernels
    for kernel in kernels:
        values = change(onnx.numpy_helper.to_array(kernel))
        kernel.CopyFrom(onnx.numpy_helper.from_array(values, kernel.name))
    changed = path.with_name(f"changed{shape[0]}x{shape[1]}.onnx")
    onnx.save(model, str(changed))
    shutil.copy(path.with_suffix(".tokenizer.json"), changed.with_suffix(".tokenizer.json"))
    return changed


@pytest.mark.parametrize(
    "make", [one_label_bundle, pytest.param(several_label_bundle, marks=pytest.mark.second)]
)
def test_correct_exports_pass(make, served, onnx_files, tmp_path):
    bundle = make()
    kind = "several labels" if bundle.multi_label else "one label"
    bundle.save(tmp_path / "run")
    data = rows_file(bundle, tmp_path / "rows.csv")
    paths = [served[kind], write(bundle, "tflite", tmp_path), onnx_files[kind]]
    given = [served[kind].parent, *paths[1:]]
    outcome = call(main, tmp_path / "run", *given, "--data", data)
    assert outcome.status == 0, outcome.err
    metric = "macro_f1" if bundle.multi_label else "accuracy"
    result = outcome.json
    assert result["passed"] and result["rows"] == len(ROWS)
    # Labels that no row has count with 0.
    occurring = {label for prediction in bundle.predict(ROWS) for label in prediction.get("labels", ())}
    expected = len(occurring) / 4 if bundle.multi_label else 1 - 1 / len(ROWS)
    assert result[metric] == pytest.approx(expected)
    assert [report["artifact"] for report in result["artifacts"]] == [str(path) for path in paths]
    reports = {report["format"]: report for report in result["artifacts"]}
    for report in reports.values():
        assert report["passed"] and report["failures"] == []
        assert report["quantization"] == "none" and report["edge_case_rows"] > 15
        assert report["max_difference"] < 1e-5 and report["label_agreement"] == 1
        assert report[f"{metric}_rounding"] == 0 and report["sample_rows"] == len(bundle.sample)
        parts = report[f"{metric}_rounding"] + report[f"{metric}_truncation"]
        assert report[f"{metric}_change"] == pytest.approx(parts)
        assert report["bytes"] > 10_000 and sum(report["ops"].values()) > 20
        assert "first_divergent_layer" not in report
    # The file of 16 tokens truncates texts that the run reads whole; they are compared with the run's truncated ids.
    assert reports["tflite"]["lengths"] == [16] and reports["tflite"]["rows_longer"] > 5
    assert reports["onnx"]["rows_longer"] == 0 and reports["onnx"]["lengths"] is None
    assert reports["tflite"]["rows_with_other_ids"] == reports["onnx"]["rows_with_other_ids"] == 0
    written = json.loads((tmp_path / "model.tflite.verify.json").read_text())
    assert written == {**reports["tflite"], "data": str(data)}
    assert (served[kind].parent / "1.verify.json").is_file()
    assert sum(line.endswith("pass") for line in outcome.err.splitlines()) == 3
    assert "texts are longer than its 16 tokens" in outcome.err


def test_a_tokenizer_file_of_another_run_fails(onnx_files, tmp_path):
    """The model is correct; only its tokenizer file is wrong."""
    bundle = one_label_bundle()
    bundle.save(tmp_path / "run")
    data = rows_file(bundle, tmp_path / "rows.csv")
    for path in onnx_files["one label"].parent.iterdir():
        if path.name.startswith("model.") and not path.name.endswith("verify.json"):
            shutil.copy(path, tmp_path)
    tokenizer = tmp_path / "model.tokenizer.json"
    values = json.loads(tokenizer.read_text())
    values["vocabulary"][10:12] = reversed(values["vocabulary"][10:12])
    tokenizer.write_text(json.dumps(values))
    outcome = call(main, tmp_path / "run", tmp_path / "model.onnx", "--data", data, "--rows=5")
    assert outcome.status == 1
    (report,) = outcome.json["artifacts"]
    assert report["rows_with_other_ids"] > 0 and report["first_divergent_layer"] == "tokenizer"
    assert report["rows"] == 5
    assert ":" in report["differs_first"] or report["differs_first"].startswith("edge-case text")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"artifact": "absent.onnx"}, "absent.onnx: expected an exported model, got no such file"),
        ({"artifact": "rows.csv"}, "rows.csv: expected a SavedModel folder, a .tflite or a .onnx file"),
        ({"artifact": "run"}, "run: expected a SavedModel or a folder of its versions"),
        ({"artifact": "bad.onnx"}, "bad.onnx: expected an ONNX file, got another"),
        ({"artifact": "alone.onnx"}, "alone.tokenizer.json: expected the tokenizer of alone.onnx"),
        ({"data": "absent.csv"}, "absent.csv"),
        ({"data": "other.csv"}, "'label'"),
        ({"run": "absent"}, "expected a run folder"),
        ({"extra": "--rows=-1"}, "--rows"),
    ],
)
def test_wrong_input_is_one_line(deep_run, onnx_files, tmp_path, change, message):
    for path in onnx_files["one label"].parent.iterdir():
        if path.suffix in (".onnx", ".json") and "verify" not in path.name:
            shutil.copy(path, tmp_path)
    shutil.copy(tmp_path / "model.onnx", tmp_path / "alone.onnx")
    shutil.copy(tmp_path / "model.tokenizer.json", tmp_path / "bad.tokenizer.json")
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    (tmp_path / "run").mkdir()
    shutil.copy(deep_run / "rows.csv", tmp_path)
    write_csv(tmp_path / "other.csv", [("bread", "food")], ("text", "kind"))
    run = tmp_path / change["run"] if "run" in change else deep_run / "run"
    artifact = tmp_path / change.get("artifact", "model.onnx")
    data = tmp_path / change.get("data", "rows.csv")
    extra = [change["extra"]] if "extra" in change else []
    outcome = call(main, run, artifact, "--data", data, *extra)
    assert outcome.status == 2 and outcome.out == "", outcome.err
    errors = [line for line in outcome.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and message in errors[0], outcome.err


def test_an_artifact_is_required(deep_run):
    outcome = call(main, deep_run / "run", "--data", deep_run / "rows.csv")
    assert outcome.status == 2 and "ARTIFACT" in outcome.err
