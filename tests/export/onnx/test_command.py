import json
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from export.device.tokenizer import Tokenizer
from export.graph import ATTENTION, PROBABILITIES
from export.onnx.__main__ import main
from export.onnx.predictor import OnnxPredictor
from export.onnx.write import write_onnx
from export.verification import tolerances
from kmha.errors import InputError
from tests.bundles import EDGE_CASES, TEXTS, make_bundle, make_outlier_bundle, one_label_bundle
from tests.command_runs import call
from tests.export.conftest import BUNDLES, unbounded

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

every_bundle = pytest.mark.parametrize("kind", BUNDLES)


def session(path):
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def predict(path, features):
    loaded = session(path)
    names = [output.name for output in loaded.get_outputs()]
    given = {name: features[name].numpy() for name in ("token_ids", "padding_mask")}
    return dict(zip(names, loaded.run(names, given), strict=True))


@every_bundle
@pytest.mark.parametrize("length", [None, 24])
def test_predictions_equal_the_bundle_at_any_length(onnx_files, kind, length):
    bundle, texts = BUNDLES[kind](), [*TEXTS, *EDGE_CASES]
    found = predict(onnx_files[kind], bundle.preprocessor(tf.constant(texts), length))
    np.testing.assert_allclose(found[PROBABILITIES], bundle.probabilities(texts), atol=1e-5)
    config, steps = bundle.model.encoder_config, 24
    shape = (len(texts), config.num_layers, config.num_heads, steps, steps)
    assert found[ATTENTION].shape == shape


@every_bundle
def test_batch_composition_changes_no_prediction(onnx_files, kind):
    bundle = BUNDLES[kind]()
    for text in TEXTS[:2]:
        alone = predict(onnx_files[kind], bundle.preprocessor(tf.constant([text])))
        np.testing.assert_allclose(alone[PROBABILITIES], bundle.probabilities([text]), atol=1e-5)


@every_bundle
def test_the_interface_is_stable(onnx_files, kind):
    bundle, loaded = BUNDLES[kind](), session(onnx_files[kind])
    labels, config = len(bundle.labels), bundle.model.encoder_config
    assert [(i.name, i.type, i.shape) for i in loaded.get_inputs()] == [
        ("token_ids", "tensor(int32)", ["batch", "length"]),
        ("padding_mask", "tensor(int32)", ["batch", "length"]),
    ]
    assert [(o.name, o.type, o.shape) for o in loaded.get_outputs()] == [
        ("probabilities", "tensor(float)", ["batch", labels]),
        (
            "attention",
            "tensor(float)",
            ["batch", config.num_layers, config.num_heads, "length", "length"],
        ),
    ]
    metadata = {name: json.loads(value) for name, value in loaded.get_modelmeta().custom_metadata_map.items()}
    assert metadata["labels"] == bundle.labels
    assert metadata["multi_label"] == bundle.multi_label
    assert metadata["thresholds"] == bundle.thresholds
    assert metadata["max_length"] == 24
    assert metadata["vocabulary_size"] == len(bundle.preprocessor.vocabulary)
    assert set(metadata["versions"]) == {"tensorflow", "keras", "tf2onnx", "onnx"}


def test_device_files_are_written_next_to_the_model(onnx_files):
    tokenizer = Tokenizer.read(onnx_files["one label"].with_suffix(".tokenizer.json"))
    features = one_label_bundle().preprocessor(tf.constant(TEXTS[:1]))
    assert tokenizer.encode(TEXTS[0]) == features["token_ids"].numpy()[0].tolist()
    names = {path.name for path in onnx_files["one label"].parent.iterdir()}
    assert {"model.labels.txt", "model.tokenizer.json", "model.vocab.txt"} <= names


def test_only_operators_of_the_standard_are_used(onnx_files):
    model = onnx.load(str(onnx_files["one label"]))
    assert {node.domain for node in model.graph.node} <= {"", "ai.onnx"}
    assert [entry.version for entry in model.opset_import if not entry.domain] == [17]


@pytest.mark.second
@pytest.mark.parametrize(
    ("opset", "encoder"),
    [
        (13, {"positions": "rotary", "activation": "relu"}),
        (18, {"norm": "post", "positions": "sinusoidal", "activation": "gelu_tanh", "ngram_buckets": 0}),
        # Tables so large that the converter stores them in another way.
        (17, {"num_segments": 2, "ngram_buckets": 20_011, "num_layers": 2}),
    ],
)
def test_other_encoders_and_opsets(tmp_path, opset, encoder):
    assert write_onnx(make_bundle(**encoder), tmp_path / "model.onnx", opset=opset)["max_difference"] < 1e-5
    model = onnx.load(str(tmp_path / "model.onnx"))
    assert [entry.version for entry in model.opset_import if not entry.domain] == [opset]
    assert [output.name for output in model.graph.output] == ["probabilities"]


@pytest.mark.second
def test_quantized_weights_are_integers(tmp_path):
    bundle = make_bundle(hidden_dim=64, intermediate_dim=128, ngram_buckets=1009)
    write_onnx(bundle, tmp_path / "float.onnx")
    with unbounded():
        worst = write_onnx(bundle, tmp_path / "small.onnx", quantize="dynamic")["max_difference"]
    assert 1e-6 < worst < 0.2
    sizes = {path.stem: path.stat().st_size for path in tmp_path.glob("*.onnx")}
    # A third of the file is the n-gram vocabulary mask, which already has one byte an entry.
    assert sizes["small"] < 0.6 * sizes["float"]
    model = onnx.load(str(tmp_path / "small.onnx"))
    kernels = {constant.name for constant in model.graph.initializer if np.prod(constant.dims) >= 1024}
    products = [node for node in model.graph.node if node.op_type in ("MatMul", "Gemm")]
    # Large weights of products are integers: two of attention, two of the feed-forward network, one of the n-grams.
    assert not [node.name for node in products if kernels & set(node.input)]
    assert sum(node.op_type == "DequantizeLinear" for node in model.graph.node) == 5
    stored = [constant for constant in model.graph.initializer if constant.name.endswith("_8_bits")]
    assert [constant.data_type for constant in stored] == 5 * [onnx.TensorProto.INT8]
    # So are the tables of tokens and n-grams.
    kinds = [constant.data_type for constant in model.graph.initializer if len(constant.dims) == 2]
    assert kinds.count(onnx.TensorProto.INT8) == 5 + 3
    assert json.loads(session(tmp_path / "small.onnx").get_modelmeta().custom_metadata_map["labels"])


def test_large_weights_that_no_text_uses_do_not_change_8_bit_predictions(tmp_path):
    bundle = make_outlier_bundle()
    with unbounded():
        write_onnx(bundle, tmp_path / "m.onnx", quantize="dynamic")
    found = OnnxPredictor(tmp_path / "m.onnx").probabilities(TEXTS)
    assert 1e-6 < np.abs(found - bundle.probabilities(TEXTS))[:, :-1].max() < 0.05


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["model.onnx", "--opset=19"], "--opset: expected 13 to 18, got 19"),
        (["model.onnx", "--opset=12"], "--opset: expected 13 to 18, got 12"),
        (["model.tflite"], "expected a name that ends in .onnx, got .tflite"),
        (["model"], "expected a name that ends in .onnx, got no suffix"),
        (["model.onnx", "--quantize=int8"], "--quantize: expected one of 'none', 'dynamic', got 'int8'"),
        (["model.onnx", "--quantise=dynamic"], "unknown flag --quantise; did you mean --quantize?"),
    ],
)
def test_impossible_settings_are_rejected(tmp_path, arguments, message):
    outcome = call(main, tmp_path / "absent", tmp_path / arguments[0], *arguments[1:])
    assert outcome.status == 2 and outcome.out == ""
    assert outcome.err.count("\n") == 1 and message in outcome.err


@pytest.mark.parametrize("missing", ["onnx", "onnxruntime", "tf2onnx"])
def test_a_missing_package_is_named(tmp_path, monkeypatch, missing):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == missing else object())
    outcome = call(main, tmp_path, tmp_path / "model.onnx")
    assert outcome.status == 2
    assert f"expected the package {missing}, got none; pip install 'kmha[onnx]'" in outcome.err


def test_a_file_is_not_replaced_by_default(runs, onnx_files):
    before = onnx_files["one label"].read_bytes()
    outcome = call(main, runs["one label"], onnx_files["one label"])
    assert outcome.status == 2 and "--overwrite" in outcome.err
    assert onnx_files["one label"].read_bytes() == before


def test_a_model_with_other_predictions_is_not_written(runs, tmp_path, monkeypatch):
    monkeypatch.setitem(tolerances.MOST_DIFFERENCE, "none", -1.0)
    outcome = call(main, runs["one label"], tmp_path / "new" / "model.onnx")
    assert outcome.status == 2 and "expected probabilities within" in outcome.err
    assert not list(tmp_path.iterdir())


def test_a_model_that_returns_nan_is_not_written(tmp_path):
    bundle = make_bundle()
    bundle.model.head.bias.assign([np.nan, 0, 0])
    with pytest.raises(InputError, match="NaN"):
        write_onnx(bundle, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_to_is_rejected(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot write there"):
        write_onnx(one_label_bundle(), tmp_path / "file" / "model.onnx")


@pytest.mark.second
def test_the_converter_logs_nothing(runs, tmp_path):
    """Runs in a separate process, since the libraries log past Python's own streams."""
    arguments = [sys.executable, "-m", "export.onnx", runs["one label"], tmp_path / "model.onnx"]
    result = subprocess.run([*map(str, arguments), "--quantize=dynamic"], capture_output=True, text=True)
    assert result.returncode == 0 and result.stdout == f"{tmp_path / 'model.onnx'}\n"
    assert len(result.stderr.splitlines()) == 2, result.stderr
