import re
import shutil
import zipfile
from typing import Any

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from export.device.tokenizer import Tokenizer
from export.graph import chosen_lengths, training_lengths
from export.tflite import write
from export.tflite import write as tflite_convert
from export.tflite.__main__ import main
from export.tflite.predictor import TflitePredictor, load_tflite
from export.tflite.write import convert, new_interpreter, op_counts, run_converter, write_tflite
from export.verification import tolerances
from kmha.bundle.manifest import CROSS_VALIDATED
from kmha.errors import InputError
from tests.artifact_store import stored
from tests.bundles import (
    EDGE_CASES,
    TEXTS,
    make_bundle,
    make_linear_bundle,
    make_outlier_bundle,
    one_label_bundle,
    widen_inputs,
)
from tests.command_runs import call, run_script
from tests.export.conftest import BUNDLES, unbounded
from tests.stages import with_stages

ALL = [*TEXTS, *EDGE_CASES]
FACTS = {"ops": {}, "lengths": [24], "labels": None}
FILES = ["m.labels.txt", "m.tflite", "m.tokenizer.json", "m.vocab.txt"]
DEVICE = """
import sys
sys.modules["tensorflow"] = sys.modules["keras"] = None
from export.tflite.predictor import TflitePredictor, load_tflite
print(load_tflite(sys.argv[1])(["old bread"])[0].tolist())
"""


@pytest.fixture
def run_folder(runs):
    return runs["one label"]


@pytest.fixture
def exported(tflite_files):
    """The file of `run_folder`, of 24 tokens. Tests only read it."""
    return tflite_files["one label"]


@pytest.fixture
def stored_content(exported, monkeypatch):
    """Replaces the converter: every conversion of `run_folder` returns the stored file."""
    content = exported.read_bytes()
    monkeypatch.setattr(write, "convert", lambda *arguments: content)
    return content


@pytest.mark.parametrize("kind", BUNDLES)
def test_texts_are_predicted_as_by_the_run(kind, tflite_files):
    bundle, path = BUNDLES[kind](), tflite_files[kind]
    assert sorted(each.name for each in path.parent.iterdir()) == FILES
    predict = load_tflite(path)
    found = predict(ALL)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, bundle.probabilities(ALL), atol=1e-5)
    assert predict([]).shape == (0, len(bundle.labels))
    assert path.with_suffix(".labels.txt").read_text("utf-8").splitlines() == bundle.labels


@pytest.mark.parametrize("tokenization", with_stages(["word", "char"], ["char"]))
def test_other_tokenizations_and_any_length(tokenization, tmp_path):
    bundle = make_bundle(tokenization=tokenization, norm="post", num_segments=2)
    write_tflite(bundle, tmp_path / "m.tflite", [None])
    found = load_tflite(tmp_path / "m.tflite")(ALL)
    np.testing.assert_allclose(found, bundle.probabilities(ALL), atol=1e-5)
    assert not zipfile.is_zipfile(tmp_path / "m.tflite")


def test_several_lengths_share_the_weights(tmp_path):
    bundle = make_bundle(ngram_buckets=5003)
    write_tflite(bundle, tmp_path / "m.tflite", [8, 24])
    two = (tmp_path / "m.tflite").read_bytes()
    assert len(two) < 1.3 * len(convert(bundle, [24]))
    interpreter = new_interpreter(two)
    assert set(interpreter.get_signature_list()) == {"length_8", "length_24"}
    np.testing.assert_allclose(load_tflite(tmp_path / "m.tflite")(ALL), bundle.probabilities(ALL), atol=1e-5)
    # The short signature runs texts that fit, and truncates the others.
    write_tflite(bundle, tmp_path / "short.tflite", [8])
    short = load_tflite(tmp_path / "short.tflite")(["bread", TEXTS[0]])
    np.testing.assert_allclose(short[0], bundle.probabilities(["bread"])[0], atol=1e-5)
    ids = Tokenizer.read(tmp_path / "short.tokenizer.json").encode(TEXTS[0], 8)
    np.testing.assert_allclose(short[1], bundle.probabilities_of_ids([ids])[0], atol=1e-5)


def test_the_interface_has_the_names_of_the_features(exported):
    runner = new_interpreter(exported.read_bytes()).get_signature_runner("serving_default")
    inputs = {name: (d["dtype"], d["shape"].tolist()) for name, d in runner.get_input_details().items()}
    assert inputs == dict.fromkeys(["token_ids", "padding_mask", "segment_ids"], (np.int32, [1, 24]))
    outputs = {name: (d["dtype"], d["shape"].tolist()) for name, d in runner.get_output_details().items()}
    assert outputs == {"probabilities": (np.float32, [1, 3])}


@pytest.mark.parametrize("length", with_stages([24, None], [24]))
def test_attention_is_returned_on_request(length, tmp_path):
    bundle = make_bundle(num_layers=2)
    write_tflite(bundle, tmp_path / "m.tflite", [length], with_attention=True)
    tokenizer = Tokenizer.read(tmp_path / "m.tokenizer.json")
    ids, mask = tokenizer.pad(tokenizer.encode(TEXTS[0]), 24)
    values = {"token_ids": ids, "padding_mask": mask, "segment_ids": [0] * 24}
    runner = new_interpreter((tmp_path / "m.tflite").read_bytes()).get_signature_runner("serving_default")
    attention = runner(**{name: np.array([row], np.int32) for name, row in values.items()})["attention"]
    assert attention.shape == (1, 2, 2, 24, 24)
    np.testing.assert_allclose((attention * np.array(mask)).sum(-1), 1, atol=1e-5)


@pytest.mark.parametrize(
    ("quantize", "size", "tolerance"),
    [
        pytest.param("float16", 0.6, 5e-3, marks=pytest.mark.second),
        ("dynamic", 0.45, 0.1),
        ("int8", 0.45, 0.1),
    ],
)
def test_quantized_models_are_smaller_and_predict_nearly_the_same(quantize, size, tolerance, tmp_path):
    bundle = make_bundle(hidden_dim=64, intermediate_dim=256, ngram_buckets=0)
    folder, _ = stored("tflite_wide", lambda folder: write_tflite(bundle, folder / "exact.tflite", [24]))
    exact, rounded = folder / "exact.tflite", tmp_path / "rounded.tflite"
    with unbounded():
        assert write_tflite(bundle, rounded, [24], quantize)["max_difference"] < tolerance
    weights = [path.stat().st_size - 30_000 for path in (rounded, exact)]
    assert weights[0] < size * weights[1]
    difference = np.abs(load_tflite(rounded)(ALL) - bundle.probabilities(ALL))
    assert 0 < difference.max() < 2 * tolerance


@pytest.mark.second
@pytest.mark.parametrize("quantize", ["float16", "int8"])
def test_texts_without_known_ngrams_are_finite(tmp_path, quantize):
    bundle = make_linear_bundle(multi_label=True)
    for known in bundle.model.linear.packed.values():
        known.assign(np.zeros_like(known))  # no n-gram
    with unbounded():
        worst = write_tflite(bundle, tmp_path / "m.tflite", [24], quantize)["max_difference"]
    assert worst < (2e-3 if quantize == "float16" else 0.1)


def test_int8_computes_products_with_weights_in_integers():
    content = convert(make_bundle(), [8, 24], "int8")
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(content, 0))
    types = {schema.BuiltinOperator.FULLY_CONNECTED: [], schema.BuiltinOperator.BATCH_MATMUL: []}
    for graph in model.subgraphs:
        for operator in graph.operators:
            code = model.operatorCodes[operator.opcodeIndex].builtinCode
            if code in types:
                types[code] += [graph.tensors[operator.inputs[place]].type for place in (0, 1)]
    dense, attention = types.values()
    assert len(dense) > 10 and set(dense) == {schema.TensorType.INT8}
    assert len(attention) == 8 and set(attention) == {schema.TensorType.FLOAT32}


@pytest.mark.second
def test_int8_leaves_layers_with_a_wide_range_in_float(tmp_path, monkeypatch):
    """As in the second feed-forward layer of BERT: one output has a large offset, and the others decide."""
    bundle = make_bundle(hidden_dim=32, intermediate_dim=64, norm="post", ngram_buckets=0)
    block, far = bundle.model.encoder.blocks[0], np.eye(32)[5]
    block.feed_forward.contract.bias.assign(600.0 * far)
    block.feed_forward_norm.gamma.assign(15.0 * (1 - far))
    block.feed_forward_norm.beta.assign(0 * far)
    bundle.model.head.kernel.assign(0.2 * bundle.model.head.kernel)
    differences = {}
    for name, widest in (("left", tflite_convert.WIDEST_INT8), ("rounded", np.inf)):
        monkeypatch.setattr(tflite_convert, "WIDEST_INT8", widest)
        with unbounded():
            write_tflite(bundle, tmp_path / name, [24], "int8")
        differences[name] = np.abs(load_tflite(tmp_path / name)(TEXTS) - bundle.probabilities(TEXTS)).max()
    assert 2 * differences["left"] < differences["rounded"], differences


def test_int8_without_a_sample_is_rejected(run_folder, tmp_path):
    bundle = make_bundle()
    bundle.sample = []
    bundle.save(tmp_path / "run")
    outcome = call(main, tmp_path / "run", tmp_path / "new" / "m.tflite", "--quantize=int8")
    assert outcome.status == 2 and "expected a run with a sample of its texts" in outcome.err
    assert not (tmp_path / "new").exists()


def test_int8_of_a_pretrained_encoder_with_few_labels_is_rejected(tmp_path):
    bundle = make_bundle()
    bundle.details |= {"pretrained": "minilm", CROSS_VALIDATED: True}
    bundle.save(tmp_path / "run")
    outcome = call(main, tmp_path / "run", tmp_path / "m.tflite", "--quantize=int8")
    assert (outcome.status, outcome.err) == (
        2,
        "error: --quantize int8: expected a run with validation rows to check it on, got a pretrained encoder with few"
        " labels; use --quantize dynamic, which is smaller and faster\n",
    )


@pytest.mark.second
@pytest.mark.parametrize(("quantize", "is_logged"), [("dynamic", True), ("none", False)])
def test_a_hint_is_logged_when_the_sample_has_training_texts(tmp_path, quantize, is_logged):
    bundle = make_bundle()
    bundle.details |= {CROSS_VALIDATED: True}
    bundle.save(tmp_path / "run")
    outcome = call(main, tmp_path / "run", tmp_path / "m.tflite", f"--quantize={quantize}")
    assert outcome.status == 0, outcome.err
    hint = "check the file with python -m export.verify RUN FILE --data TEST"
    assert (hint in outcome.err) == is_logged


@pytest.mark.second
def test_large_weights_and_inputs_do_not_change_8_bit_predictions(tmp_path):
    bundle = make_outlier_bundle()
    widen_inputs(bundle)
    with unbounded():
        write_tflite(bundle, tmp_path / "m.tflite", [24], "dynamic")
    found = TflitePredictor(tmp_path / "m.tflite").probabilities(TEXTS)
    assert 1e-6 < np.abs(found - bundle.probabilities(TEXTS))[:, :-1].max() < 0.05


def test_the_signatures_of_int8_share_one_token_table():
    model = schema.Model.GetRootAsModel(convert(make_bundle(), [4, 24], "int8"), 0)
    tables = []
    for graph in (model.Subgraphs(index) for index in range(model.SubgraphsLength())):
        for operator in (graph.Operators(index) for index in range(graph.OperatorsLength())):
            if re.search(r"/tokens(_\d+)?/Gather", graph.Tensors(operator.Outputs(0)).Name().decode()):
                tables.append(graph.Tensors(operator.Inputs(0)).Buffer())
    assert len(tables) == 2 and len(set(tables)) == 1


@pytest.mark.parametrize(
    ("lengths", "requested", "expected"),
    [
        ({"p50": 6, "p90": 7, "p99": 16, "p100": 17}, (), [8, 16, 24]),
        ({"p50": 1, "p90": 9, "p99": 12, "p100": 900}, (), [8, 16, 24]),
        ({}, (), [24]),
        ({}, (9, 3, 9), [3, 9]),
    ],
)
def test_lengths(lengths, requested, expected):
    bundle = make_bundle()
    bundle.details["lengths"] = lengths
    assert chosen_lengths(bundle, requested) == expected


def test_a_run_of_few_labels_also_has_its_longest_length():
    bundle = make_bundle()
    bundle.details |= {"lengths": {"p50": 3, "p90": 4, "p99": 7, "p100": 7}, CROSS_VALIDATED: True}
    assert chosen_lengths(bundle) == [8, 24] and training_lengths(bundle) == [8]
    assert chosen_lengths(bundle, (16,)) == [16]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--length", "25"], "--length: expected 3 to the run's 24, got 25"),
        (["--length", "8", "2"], "--length: expected 3 to the run's 24, got 2"),
        (["--length", "8", "--dynamic-length"], "--dynamic-length: expected it or --length, got both"),
        (
            ["--quantize", "int4"],
            "--quantize: expected one of 'none', 'float16', 'dynamic', 'int8', got 'int4'",
        ),
    ],
)
def test_wrong_flags_are_rejected(run_folder, tmp_path, arguments, message):
    outcome = call(main, run_folder, tmp_path / "m.tflite", *arguments)
    assert (outcome.status, outcome.out) == (2, "")
    assert outcome.err == f"error: {message}\n"
    assert not list(tmp_path.iterdir())


def test_the_command_does_not_replace_files(run_folder, stored_content, tmp_path):
    out = tmp_path / "m.tflite"
    arguments = (main, run_folder, out, "--length=24")
    outcome = call(*arguments)
    assert (outcome.status, outcome.out) == (0, f"{out}\n")
    # The same tokenizer may serve another format; a different one must not be replaced without --overwrite.
    outcome = call(*arguments)
    assert outcome.status == 2 and f"{out}: expected a new place" in outcome.err
    out.unlink()
    assert call(*arguments).status == 0
    out.unlink()
    (tmp_path / "m.vocab.txt").write_text("mine")
    outcome = call(*arguments)
    assert outcome.status == 2 and "m.vocab.txt: expected a new place" in outcome.err and not out.exists()
    assert call(*arguments, "--overwrite").status == 0
    assert (tmp_path / "m.vocab.txt").read_text() != "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == FILES


def test_a_folder_that_cannot_be_written_to_is_rejected(run_folder, tmp_path):
    (tmp_path / "file").touch()
    outcome = call(main, run_folder, tmp_path / "file" / "m.tflite")
    assert outcome.status == 2 and "cannot write there" in outcome.err and outcome.err.count("\n") == 1


@pytest.mark.parametrize("fault", ["custom op", "variable", "not a number", "other weights"])
def test_a_failed_check_leaves_nothing(run_folder, exported, tmp_path, monkeypatch, fault):
    contents = {
        "custom op": _with_flex_op,
        "variable": _with_variables,
        "not a number": _with_nan,
        "other weights": exported.read_bytes,
    }
    content, run = contents[fault], run_folder
    if fault == "other weights":
        other, run = make_bundle(), tmp_path / "run"
        other.model.head.kernel.assign(-other.model.head.kernel)
        other.save(run)
    monkeypatch.setattr(write, "convert", lambda *arguments: content())
    out = tmp_path / "out" / "m.tflite"
    outcome = call(main, run, out, "--length=24")
    message = {
        "custom op": "expected built-in ops without variables, got Betainc",
        "variable": "without variables, got ASSIGN_VARIABLE",
        "not a number": "expected finite predictions, got NaN or infinity",
        "other weights": "expected probabilities within 1e-04, got a difference of",
    }[fault]
    assert outcome.status == 2 and message in outcome.err and outcome.err.count("error: ") == 1
    assert not out.parent.exists()


@pytest.mark.parametrize("bound", ["LEAST_AGREEMENT", "MOST_OFF", "MOST_P999"])
def test_an_export_that_verify_would_fail_is_not_published(
    run_folder, stored_content, tmp_path, monkeypatch, bound
):
    """The earlier artifact stays."""
    out = tmp_path / "m.tflite"
    out.write_bytes(b"earlier")
    monkeypatch.setattr(TflitePredictor, "facts", lambda self: {**FACTS, "quantization": "dynamic"})
    monkeypatch.setattr(tolerances, bound, 2 if bound == "LEAST_AGREEMENT" else -1)
    outcome = call(main, run_folder, out, "--length=24", "--quantize=dynamic", "--overwrite")
    assert (outcome.status, outcome.out) == (2, "")
    assert outcome.err.count("\n") == 1 and outcome.err.startswith(f"error: {out}: expected ")
    assert "differs first in" in outcome.err and "Nothing was written; use another --quantize." in outcome.err
    assert out.read_bytes() == b"earlier" and [each.name for each in tmp_path.iterdir()] == ["m.tflite"]


@pytest.mark.parametrize("quantize", with_stages(["float16", "dynamic", "int8"], ["dynamic"]))
def test_signatures_of_quantized_models_share_the_weights(quantize):
    bundle = make_bundle(hidden_dim=64, intermediate_dim=256, ngram_buckets=5003)
    one, two = (len(convert(bundle, lengths, quantize)) for lengths in ([24], [8, 16, 24]))
    assert two - one < 0.5 * one, (one, two)


def _with_nan() -> bytes:
    """A model that returns NaN."""
    wrong = make_bundle()
    wrong.model.weights[0].assign(wrong.model.weights[0] * np.nan)
    return convert(wrong, [24])


def _with_flex_op() -> bytes:
    """A model with an op that is not built in."""
    import tensorflow as tf

    function = tf.function(lambda x: tf.raw_ops.Betainc(a=x, b=x, x=x)).get_concrete_function(
        tf.TensorSpec([2], tf.float32)
    )
    converter = tf.lite.TFLiteConverter.from_concrete_functions([function], tf.Module())
    return run_converter(converter)


def _with_variables() -> bytes:
    """A model whose weights are handles."""
    import tensorflow as tf

    class Counter(tf.Module):
        def __init__(self):
            super().__init__()
            self.count = tf.Variable(tf.ones(1))

        @tf.function(input_signature=[tf.TensorSpec([1], tf.float32)])
        def add(self, x):
            self.count.assign_add(x)
            return self.count + x

    module = Counter()
    function: Any = module.add
    converter = tf.lite.TFLiteConverter.from_concrete_functions([function.get_concrete_function()], module)
    converter.experimental_enable_resource_variables = True
    return converter.convert()


def test_an_export_counts_its_ops(exported):
    counts = op_counts(exported.read_bytes())
    assert counts["SOFTMAX"] == 2 and counts["FULLY_CONNECTED"] >= 4 and "VAR_HANDLE" not in counts


def test_a_model_runs_without_tensorflow(exported):
    printed = run_script(DEVICE, exported)
    expected = one_label_bundle().probabilities(["old bread"])[0]
    np.testing.assert_allclose(np.array(numbers(printed)), expected, atol=1e-5)


def numbers(text: str) -> list[float]:
    return [float(number) for number in text.strip(" []\n").split(",")]


@pytest.mark.parametrize("fault", ["no model", "no tokenizer", "damaged model", "damaged tokenizer"])
def test_unreadable_files_are_rejected(exported, tmp_path, fault):
    shutil.copytree(exported.parent, tmp_path, dirs_exist_ok=True)
    path = tmp_path / ("m.tflite" if fault.endswith("model") else "m.tokenizer.json")
    path.unlink() if fault.startswith("no") else path.write_bytes(b"{}")
    with pytest.raises(InputError, match=f"{path.name}: expected"):
        load_tflite(tmp_path / "m.tflite")


@pytest.mark.parametrize("number", [10**6, 2**30, -(10**6)])
def test_ids_past_the_vocabulary_are_an_error_of_the_runtime(number, exported):
    runner = new_interpreter(exported.read_bytes()).get_signature_runner("serving_default")
    ids = np.array([[2, number, 3, *[0] * 21]], np.int32)
    with pytest.raises(RuntimeError, match="out of bounds"):
        runner(token_ids=ids, padding_mask=np.ones_like(ids), segment_ids=np.zeros_like(ids))
