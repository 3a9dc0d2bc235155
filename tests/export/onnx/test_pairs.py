"""Matchers as ONNX files."""

import json

import numpy as np
import pytest

from export.graph import PAIR_FLOAT_LAYERS, features_of, input_names
from export.onnx import write
from export.onnx.__main__ import main
from export.onnx.predictor import read
from export.onnx.write import convert, with_8_bit_kernels, write_onnx
from kmha.errors import InputError
from tests.bundles import PAIRS
from tests.export.conftest import unbounded
from tests.export.pair_bundles import (
    ROWS,
    bundle_of,
    every_kind,
    many_classes,
    predictions_of,
    written_by,
)
from tests.stages import with_stages

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def files():
    """A file of each matcher, with attention, as the command writes it."""
    return written_by(main, ".onnx", "--attention")


def session(path):
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


@every_kind
def test_pairs_are_predicted_as_by_the_run(files, kind):
    found = read(files[kind]).probabilities(ROWS)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, predictions_of(kind), atol=1e-5)


@every_kind
def test_padding_and_batch_composition_change_no_prediction(files, kind):
    bundle, loaded = bundle_of(kind), session(files[kind])
    features = features_of(bundle, PAIRS, 24)
    for ids, mask, text, _ in bundle.preprocessor.inputs:
        if text == 1:
            # Removes the common padding of the second texts only.
            longest = int(features[mask].sum(axis=1).max())
            features |= {name: features[name][:, :longest] for name in (ids, mask)}
    inputs = {name: features[name] for name in input_names(bundle)}
    (whole,) = loaded.run([loaded.get_outputs()[0].name], inputs)
    np.testing.assert_allclose(whole, predictions_of(kind)[: len(PAIRS)], atol=1e-5)
    alone = read(files[kind]).probabilities(PAIRS[:1])
    np.testing.assert_allclose(alone, whole[:1], atol=1e-5)


def test_the_interface_with_one_tokenizer(files):
    loaded = session(files["cross"])
    assert [(i.name, i.type, i.shape) for i in loaded.get_inputs()] == [
        ("token_ids_a", "tensor(int32)", ["batch", "length_a"]),
        ("padding_mask_a", "tensor(int32)", ["batch", "length_a"]),
        ("token_ids_b", "tensor(int32)", ["batch", "length_b"]),
        ("padding_mask_b", "tensor(int32)", ["batch", "length_b"]),
    ]
    first, *rest = [(o.name, o.type, o.shape) for o in loaded.get_outputs()]
    assert first == ("scores", "tensor(float)", ["batch", 1])
    assert rest == [
        ("attention_a", "tensor(float)", ["batch", 1, 2, "length_a", "length_a"]),
        ("attention_a_to_b", "tensor(float)", ["batch", 1, 2, "length_a", "length_b"]),
        ("attention_b", "tensor(float)", ["batch", 1, 2, "length_b", "length_b"]),
        ("attention_b_to_a", "tensor(float)", ["batch", 1, 2, "length_b", "length_a"]),
    ]


@pytest.mark.second
def test_the_interface_with_two_tokenizers(files):
    loaded = session(files["two ways"])
    inputs = [given.name for given in loaded.get_inputs()]
    assert inputs == input_names(bundle_of("two ways")) and len(inputs) == 8
    shapes = {value.name: value.shape for value in (*loaded.get_inputs(), *loaded.get_outputs())}
    assert shapes["char_token_ids_b"] == ["batch", "char_length_b"]
    assert shapes["char_attention_b_to_a"][-2:] == ["char_length_b", "char_length_a"]


@every_kind
def test_attention_is_that_of_the_model(files, kind):
    bundle, loaded = bundle_of(kind), session(files[kind])
    features = features_of(bundle, PAIRS)
    names = [output.name for output in loaded.get_outputs() if "attention" in output.name]
    inputs = {name: features[name] for name in input_names(bundle)}
    found = dict(zip(names, loaded.run(names, inputs), strict=True))
    _, expected = bundle.model(features, return_attention_weights=True, training=False)
    assert set(found) == set(expected)
    for name, layers in expected.items():
        np.testing.assert_allclose(found[name], np.stack(layers, axis=1), atol=1e-5)


def test_vectors_of_the_bi_form_give_its_scores(files):
    bundle, loaded = bundle_of("bi"), session(files["bi"])
    features = features_of(bundle, PAIRS)
    inputs = {name: features[name] for name in input_names(bundle)}
    a, b, scores = loaded.run(["vectors_a", "vectors_b", "scores"], inputs)
    np.testing.assert_allclose((a * a).sum(-1), 1, atol=1e-5)
    np.testing.assert_allclose(a, bundle.model.vectors(features, "a"), atol=1e-5)
    np.testing.assert_allclose(b, bundle.model.vectors(features, "b"), atol=1e-5)
    logits = bundle.model.cosine_scale * (a * b).sum(-1, keepdims=True) + bundle.model.cosine_bias
    np.testing.assert_allclose(bundle.model.probabilities(logits), scores, atol=1e-5)


def metadata_of(path):
    values = session(path).get_modelmeta().custom_metadata_map
    return {name: json.loads(value) for name, value in values.items() if name != "versions"}


def test_the_metadata_describes_the_outputs(files):
    size = len(bundle_of("cross").preprocessor.parts[0].vocabulary)
    assert metadata_of(files["cross"]) == {
        "labels": ["score"],
        "task": "match",
        "target": "binary",
        "threshold": 0.5,
        "granularities": {"wordpiece": {"max_length": 24, "vocabulary_size": size}},
    }


@pytest.mark.second
def test_the_metadata_of_scores_and_classes(files):
    graded, classes = metadata_of(files["two ways"]), metadata_of(files["joint"])
    assert (graded["target"], graded["threshold"]) == ("graded", None)
    assert list(graded["granularities"]) == ["wordpiece", "char"]
    assert (classes["target"], classes["labels"]) == ("classes", ["no", "perhaps", "yes"])


@pytest.mark.second
def test_quantized_weights_are_integers(tmp_path):
    bundle = bundle_of("cross")
    with unbounded():
        worst = write_onnx(bundle, tmp_path / "m.onnx", quantize="dynamic")["max_difference"]
    assert 1e-6 < worst < 0.1
    predictor = read(tmp_path / "m.onnx")
    assert predictor.facts()["quantization"] == "dynamic"
    assert np.abs(predictor.probabilities(ROWS) - predictions_of("cross")).max() < 0.1


@pytest.mark.second
def test_the_head_is_not_quantized(monkeypatch):
    monkeypatch.setattr(write, "FEWEST_8_BIT", 1)
    model = with_8_bit_kernels(convert(many_classes(), 17), PAIR_FLOAT_LAYERS)
    types = {constant.name: constant.data_type for constant in model.graph.initializer}
    heads = [node for node in model.graph.node if "/head" in node.name and node.op_type in ("MatMul", "Gemm")]
    assert [types[node.input[1]] for node in heads] == [onnx.TensorProto.FLOAT]
    assert sum(node.op_type == "DequantizeLinear" for node in model.graph.node) > 3


@pytest.mark.second
def test_the_predictor_reports_its_ids_of_pairs(files):
    bundle, predictor = bundle_of("two ways"), read(files["two ways"])
    facts = predictor.facts()
    assert (facts["labels"], facts["lengths"], facts["quantization"]) == (["score"], None, "none")
    features = features_of(bundle, ROWS)
    for row, ids in enumerate(predictor.token_ids(ROWS)):
        for given, found in zip(bundle.preprocessor.inputs, ids, strict=True):
            assert found == features[given.ids][row, : features[given.mask][row].sum()].tolist()
    assert len(list(predictor.tensors(ROWS[:3]))) > 100


@pytest.mark.parametrize(
    ("rows", "message"),
    [(["one text"], "expected a pair of texts a row, got one text"), ([("a",)], "got 1 texts")],
)
def test_rows_that_are_not_pairs_are_rejected(files, rows, message):
    with pytest.raises(InputError, match=message):
        read(files["cross"]).probabilities(rows)


@pytest.mark.parametrize(("kind", "outputs"), with_stages([("cross", 1), ("joint", 3)], [("cross", 1)]))
def test_no_rows_give_no_predictions(files, kind, outputs):
    assert read(files[kind]).probabilities([]).shape == (0, outputs)
