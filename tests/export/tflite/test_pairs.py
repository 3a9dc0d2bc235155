"""Matchers as TFLite files."""

import numpy as np
import pytest

from export.graph import chosen_lengths, features_of, input_names, output_name
from export.tflite.__main__ import main
from export.tflite.metadata import has_metadata
from export.tflite.predictor import load_tflite, read
from export.tflite.write import check_ops, convert, new_interpreter, write_tflite
from kmha.errors import InputError
from tests.artifact_store import RUN
from tests.bundles import PAIRS, make_pair_bundle
from tests.command_runs import call, run_script
from tests.export.conftest import unbounded
from tests.export.pair_bundles import (
    ROWS,
    bundle_of,
    every_kind,
    many_classes,
    predictions_of,
    written_by,
)

DEVICE = """
import sys
sys.modules["tensorflow"] = sys.modules["keras"] = None
from export.tflite.predictor import load_tflite
print(load_tflite(sys.argv[1])([("old bread", "new bread")])[0, 0])
"""


@pytest.fixture(scope="module")
def files():
    """A file of each matcher of length 24, with attention, as the command writes it."""
    return written_by(main, ".tflite", "--length", "24", "--attention")


def runner_of(path):
    return new_interpreter(path.read_bytes()).get_signature_runner("serving_default")


@every_kind
def test_pairs_are_predicted_as_by_the_run(files, kind):
    found = load_tflite(files[kind])(ROWS)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, predictions_of(kind), atol=1e-5)
    assert load_tflite(files[kind])([]).shape == (0, len(bundle_of(kind).labels))
    check_ops(files[kind].read_bytes())


@every_kind
def test_the_interface_has_the_names_of_the_features(files, kind):
    bundle, runner = bundle_of(kind), runner_of(files[kind])
    inputs = {name: (d["dtype"], d["shape"].tolist()) for name, d in runner.get_input_details().items()}
    assert inputs == dict.fromkeys(input_names(bundle), (np.int32, [1, 24]))
    details = runner.get_output_details()[output_name(bundle)]
    assert (details["dtype"], details["shape"].tolist()) == (np.float32, [1, len(bundle.labels)])


@every_kind
def test_other_outputs_are_those_of_the_model(files, kind):
    bundle, runner = bundle_of(kind), runner_of(files[kind])
    features = features_of(bundle, PAIRS[:1], 24)
    found = runner(**features)
    _, weights = bundle.model(features, return_attention_weights=True, training=False)
    expected = {name: np.stack(layers, axis=1) for name, layers in weights.items()}
    if kind == "bi":
        expected |= {f"vectors_{side}": bundle.model.vectors(features, side) for side in "ab"}
    assert set(found) == {output_name(bundle), *expected}
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, atol=1e-5)


@pytest.mark.second
def test_any_length_and_several_lengths(tmp_path):
    write_tflite(bundle_of("joint"), tmp_path / "any.tflite", [None])
    np.testing.assert_allclose(load_tflite(tmp_path / "any.tflite")(ROWS), predictions_of("joint"), atol=1e-5)
    write_tflite(bundle_of("joint"), tmp_path / "m.tflite", [8, 24])
    np.testing.assert_allclose(load_tflite(tmp_path / "m.tflite")(ROWS), predictions_of("joint"), atol=1e-5)
    predictor = read(tmp_path / "m.tflite")
    assert predictor.facts()["lengths"] == [8, 24] and predictor.facts()["quantization"] == "none"


@pytest.mark.second
def test_long_texts_are_truncated_between_the_special_tokens(tmp_path):
    bundle = bundle_of("bi")
    write_tflite(bundle, tmp_path / "m.tflite", [8])
    predictor = read(tmp_path / "m.tflite")
    features = features_of(bundle, PAIRS, 8)
    expected = bundle.probabilities_of_features(features)
    np.testing.assert_allclose(predictor.probabilities(PAIRS), expected, atol=1e-5)
    for row, ids in enumerate(predictor.token_ids(PAIRS)):
        for side, found in zip("ab", ids, strict=True):
            assert found == features[f"token_ids_{side}"][row, : len(found)].tolist()
            assert found[-1] == 3
    assert len(list(predictor.tensors(PAIRS[:2]))) > 100


def test_a_tokenizer_with_a_smaller_length_has_a_shorter_input():
    bundle = make_pair_bundle(("wordpiece", "char"))
    bundle.preprocessor.parts[0].max_length = 12
    assert chosen_lengths(bundle, (20,)) == [20]
    with pytest.raises(InputError, match="expected 3 to the run's 24, got 25"):
        chosen_lengths(bundle, (25,))
    shapes = {name: values.shape[1] for name, values in features_of(bundle, PAIRS, 20).items()}
    assert shapes["wordpiece_token_ids_a"] == 12 and shapes["char_padding_mask_b"] == 20


@pytest.mark.second
@pytest.mark.parametrize(("quantize", "tolerance"), [("dynamic", 0.01), ("int8", 0.05)])
def test_quantized_models_predict_nearly_the_same(quantize, tolerance, tmp_path):
    path = tmp_path / "m.tflite"
    with unbounded():
        assert write_tflite(bundle_of("cross"), path, [24], quantize)["max_difference"] < tolerance
    assert read(path).facts()["quantization"] == quantize
    difference = np.abs(load_tflite(path)(ROWS) - predictions_of("cross"))
    assert 0 < difference.max() < tolerance


@pytest.mark.second
def test_int8_leaves_the_comparison_in_floating_point_and_shares_tables():
    from ai_edge_litert import schema_py_generated as schema

    content = convert(bundle_of("joint"), [8, 24], "int8")
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(content, 0))
    products, tables = {"head": set(), "feed_forward": set()}, {}
    for graph in model.subgraphs:
        for operator in graph.operators:
            output, first = graph.tensors[operator.outputs[0]], graph.tensors[operator.inputs[0]]
            code = model.operatorCodes[operator.opcodeIndex].builtinCode
            assert b"/overlap" not in output.name or output.type != schema.TensorType.INT8
            if code == schema.BuiltinOperator.FULLY_CONNECTED:
                for part, found in products.items():
                    if f"/{part}" in output.name.decode():
                        found.add(output.type)
            if code == schema.BuiltinOperator.GATHER and model.buffers[first.buffer].data is not None:
                tables.setdefault(tuple(first.shape), set()).add(first.buffer)
    assert products == {"head": {schema.TensorType.FLOAT32}, "feed_forward": {schema.TensorType.INT8}}
    size = len(bundle_of("joint").preprocessor.parts[0].vocabulary)
    # Of both texts and lengths.
    assert len(tables[size, 16]) == 1


@pytest.mark.second
def test_dynamic_leaves_the_head_in_float():
    """It adds up vectors and shares of overlap, which have no common scale."""
    from ai_edge_litert import schema_py_generated as schema

    bundle = many_classes()
    content = convert(bundle, [24], "dynamic")
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(content, 0))
    (graph,) = model.subgraphs
    kernels = [
        graph.tensors[operator.inputs[1]].type
        for operator in graph.operators
        if model.operatorCodes[operator.opcodeIndex].builtinCode == schema.BuiltinOperator.FULLY_CONNECTED
        and "/head" in graph.tensors[operator.outputs[0]].name.decode()
    ]
    assert bundle.model.head.kernel.shape[0] * len(bundle.labels) > 1024 and kernels == [
        schema.TensorType.FLOAT32
    ]


def test_a_model_runs_without_tensorflow(files):
    printed = run_script(DEVICE, files["cross"])
    expected = bundle_of("cross").probabilities([("old bread", "new bread")])[0, 0]
    assert float(printed) == pytest.approx(expected, abs=1e-5)


def test_no_metadata_of_mediapipe_is_written_for_pairs(files):
    assert not has_metadata(bundle_of("cross"), 1, False)
    assert b"TFLITE_METADATA" not in files["cross"].read_bytes()


def test_a_file_of_strings_is_rejected(files, tmp_path):
    run = files["cross"].with_name(RUN)
    outcome = call(main, run, tmp_path / "m.tflite", "--with-tokenizer")
    assert (outcome.status, outcome.out) == (2, "")
    assert outcome.err == "error: --with-tokenizer: expected a run of single texts, got one of pairs\n"
    assert not list(tmp_path.iterdir())
