"""Vectors in files for devices: those of the bundle, by signatures or outputs that share the weights, and verified."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from export import graph as device_graph
from export.graph import embedded_texts, vectors_function
from export.onnx import predictor as read_onnx
from export.onnx.__main__ import main as onnx_main
from export.onnx.write import write_onnx
from export.tflite import predictor as read_tflite
from export.tflite import write as tflite_files
from export.tflite.__main__ import main as tflite_main
from export.tflite.predictor import load_tflite
from export.tflite.write import new_interpreter, write_tflite
from export.verify import main as verify
from kmha.errors import InputError
from kmha.inference.retrieval import TextVectors
from tests.bundles import (
    EDGE_CASES,
    PAIRS,
    TEXTS,
    make_bundle,
    make_pair_bundle,
    one_label_bundle,
    pair_bundle,
    tagger_bundle,
)
from tests.command_runs import call, refused, write_csv
from tests.export.conftest import unbounded

onnx = pytest.importorskip("onnx")

ALL = [*TEXTS, *(text for text in EDGE_CASES if len(text) < 1000)]
BYTES = [text if isinstance(text, bytes) else text.encode() for text in ALL]
PAIR_BYTES = [(a.encode(), b.encode()) for a, b in PAIRS]

# TFLite.


@pytest.mark.second
@pytest.mark.parametrize("lengths", [[8, 24], [None]])
def test_a_tflite_file_has_vectors_on_request(lengths, tmp_path):
    bundle = make_bundle(ngram_buckets=5003)
    write_tflite(bundle, tmp_path / "plain.tflite", lengths)
    assert write_tflite(bundle, tmp_path / "m.tflite", lengths, with_vectors=True)["max_difference"] < 1e-5
    # The weights are shared.
    sizes = [(tmp_path / f"{name}.tflite").stat().st_size for name in ("plain", "m")]
    assert sizes[1] < 1.3 * sizes[0]
    names = {"embed"} if len(lengths) == 1 else {"embed_length_8", "embed_length_24"}
    interpreter = new_interpreter((tmp_path / "m.tflite").read_bytes())
    assert {name for name in interpreter.get_signature_list() if name.startswith("embed")} == names
    runner = interpreter.get_signature_runner(min(names))
    assert set(runner.get_input_details()) == {"token_ids", "padding_mask", "segment_ids"}
    assert list(runner.get_output_details()) == ["vectors"]
    found = read_tflite.read(tmp_path / "m.tflite").vectors(BYTES)
    assert set(found) == {"embed"}
    np.testing.assert_allclose(found["embed"], TextVectors(bundle)(ALL), atol=1e-5)
    # Predictions do not change, and their readers ignore the other signatures.
    np.testing.assert_allclose(load_tflite(tmp_path / "m.tflite")(ALL), bundle.probabilities(ALL), atol=1e-5)
    assert read_tflite.read(tmp_path / "plain.tflite").vectors(BYTES) == {}


@pytest.mark.second
@pytest.mark.parametrize("quantize", ["float16", "dynamic", "int8"])
def test_vectors_of_quantized_weights_have_the_same_direction(quantize, tmp_path):
    bundle = make_bundle(hidden_dim=64, intermediate_dim=256, ngram_buckets=0)
    with unbounded():
        write_tflite(bundle, tmp_path / "m.tflite", [24], quantize, with_vectors=True)
    (found,) = read_tflite.read(tmp_path / "m.tflite").vectors(BYTES).values()
    expected = TextVectors(bundle)(ALL)
    assert 0.99 < (found * expected).sum(axis=1).min()
    assert np.abs(found - expected).max() > 0


@pytest.mark.second
@pytest.mark.parametrize("share", [True, False])
def test_bi_encoders_embed_each_side_separately(share, tmp_path):
    bundle = make_pair_bundle(("wordpiece", "char"), form="bi", share_weights=share)
    write_tflite(bundle, tmp_path / "m.tflite", [24], with_vectors=True)
    interpreter = new_interpreter((tmp_path / "m.tflite").read_bytes())
    inputs = interpreter.get_signature_runner("embed").get_input_details()
    names = [f"{part}_{name}_b" for part in ("wordpiece", "char") for name in ("token_ids", "padding_mask")]
    assert sorted(inputs) == sorted(names)
    found = read_tflite.read(tmp_path / "m.tflite").vectors(PAIR_BYTES)
    assert set(found) == {"vectors_a", "vectors_b", "embed", *(() if share else ("embed_query",))}
    for name, values in found.items():
        number = 0 if name in ("vectors_a", "embed_query") else 1
        expected = TextVectors(bundle, "ab"[number])([pair[number] for pair in PAIRS])
        np.testing.assert_allclose(values, expected, atol=1e-5)


# ONNX.


@pytest.mark.parametrize("quantize", ["none", pytest.param("dynamic", marks=pytest.mark.second)])
def test_an_onnx_file_has_vectors_and_probabilities(quantize, tmp_path):
    bundle = make_bundle(num_layers=2)
    for name, embed in (("plain", False), ("m", True)):
        with unbounded():
            write_onnx(bundle, tmp_path / f"{name}.onnx", quantize, embed=embed)
    plain, found = (read_onnx.read(tmp_path / f"{name}.onnx") for name in ("plain", "m"))
    tolerance = 1e-5 if quantize == "none" else 0.2
    vectors = found.vectors(BYTES)
    assert set(vectors) == {"vectors"} and plain.vectors(BYTES) == {}
    np.testing.assert_allclose(vectors["vectors"], TextVectors(bundle)(ALL), atol=tolerance)
    np.testing.assert_allclose(found.probabilities(BYTES), bundle.probabilities(ALL), atol=tolerance)
    # The file contains the encoder once.
    products = [sum(n for op, n in each.facts()["ops"].items() if "MatMul" in op) for each in (plain, found)]
    assert products[0] == products[1]


@pytest.mark.second
def test_onnx_files_of_bi_encoders_always_have_both_vectors(tmp_path):
    bundle = make_pair_bundle(form="bi", share_weights=False)
    write_onnx(bundle, tmp_path / "m.onnx", embed=True)
    found = read_onnx.read(tmp_path / "m.onnx").vectors(PAIR_BYTES)
    assert set(found) == {"vectors_a", "vectors_b"}
    for side, column in zip("ab", zip(*PAIRS, strict=True), strict=True):
        np.testing.assert_allclose(found[f"vectors_{side}"], TextVectors(bundle, side)(column), atol=1e-5)


# Rejected.


@pytest.mark.parametrize(
    ("make", "got"), [(pair_bundle, "one of the cross form"), (tagger_bundle, "a tagger")]
)
def test_a_model_whose_texts_have_no_vectors_is_rejected(make, got, tmp_path):
    assert embedded_texts(make()) == {}
    make().save(tmp_path / "run")
    message = f"--embed: expected a classifier or a matcher of the bi form, got {got}"
    for main, name in ((tflite_main, "m.tflite"), (onnx_main, "m.onnx")):
        assert refused(tmp_path, main, str(tmp_path / "run"), str(tmp_path / name), "--embed") == message


@pytest.mark.second
@pytest.mark.parametrize("factor", [1.01, np.nan])
@pytest.mark.parametrize("suffix", ["onnx", "tflite"])
def test_wrong_vectors_are_not_written(suffix, factor, tmp_path, monkeypatch):
    def wrong(bundle, number):
        right = vectors_function(bundle, number)
        return tf.function(lambda *inputs: factor * right(*inputs), autograph=False)

    def wrong_and_named(bundle, number):
        return lambda *inputs: {"vectors": wrong(bundle, number)(*inputs)}

    # Not the function that the file is compared with.
    monkeypatch.setattr(device_graph, "vectors_function", wrong)
    monkeypatch.setattr(tflite_files, "_named_vectors", wrong_and_named)
    with pytest.raises(InputError, match="Nothing was written"):
        if suffix == "onnx":
            write_onnx(make_bundle(), tmp_path / "m.onnx", embed=True)
        else:
            write_tflite(make_bundle(), tmp_path / "m.tflite", [16], with_vectors=True)
    assert not list(tmp_path.iterdir())


# Verified.


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run, rows that it labeled, and correct files with vectors."""
    folder, bundle = tmp_path_factory.mktemp("verified"), one_label_bundle()
    bundle.save(folder / "run")
    rows = [*TEXTS, *(f"{text} {text}" for text in TEXTS)]
    predictions = bundle.predict(rows)
    write_csv(
        folder / "rows.csv", [(text, each["label"]) for text, each in zip(rows, predictions, strict=True)]
    )
    write_tflite(bundle, folder / "m.tflite", [16], with_vectors=True)
    write_tflite(bundle, folder / "dynamic.tflite", [24], "dynamic", with_vectors=True)
    write_onnx(bundle, folder / "m.onnx", embed=True)
    return folder


@pytest.mark.second
def test_correct_vectors_pass_and_are_reported(run, served):
    paths = [run / "m.tflite", run / "dynamic.tflite", run / "m.onnx", served["one label"]]
    outcome = call(verify, run / "run", *paths, "--data", run / "rows.csv")
    assert outcome.status == 0, outcome.err
    for report, name in zip(outcome.json["artifacts"], ("embed", "embed", "vectors", "embed"), strict=True):
        assert set(report["vectors"]) == {name}
        found = report["vectors"][name]
        rounded = report["quantization"] == "dynamic"
        assert (1e-5 < found["max_difference"] < 0.3) if rounded else (found["max_difference"] < 1e-5)
        assert found["least_cosine"] > (0.98 if rounded else 0.99999) and found["not_finite"] == 0
        # Texts longer than the file's input are compared with the run's vectors of the truncated texts.
        assert (report["rows_longer"] > 3) == (report["artifact"] == str(run / "m.tflite"))
    assert sum("vectors differ by at most" in line for line in outcome.err.splitlines()) == 4


def tampered(path: Path, folder: Path, factor: float) -> Path:
    """A copy of an ONNX file whose vectors are multiplied."""
    model = onnx.load(str(path))
    for node in model.graph.node:
        for place, name in enumerate(node.output):
            if name == "vectors":
                node.output[place] = "true_vectors"
    value = onnx.helper.make_node("Constant", [], ["factor"], value_float=factor)
    model.graph.node.extend([value, onnx.helper.make_node("Mul", ["true_vectors", "factor"], ["vectors"])])
    changed = folder / "m.onnx"
    onnx.save(model, str(changed))
    shutil.copy(path.with_suffix(".tokenizer.json"), changed.with_suffix(".tokenizer.json"))
    return changed


@pytest.mark.second
@pytest.mark.parametrize(
    ("factor", "message"),
    [(1.01, "vectors: expected numbers within 1e-04"), (float("nan"), "vectors: expected finite numbers")],
)
def test_changed_vectors_fail(run, tmp_path, factor, message):
    path = tampered(run / "m.onnx", tmp_path, factor)
    outcome = call(verify, run / "run", path, "--data", run / "rows.csv")
    assert outcome.status == 1
    (report,) = outcome.json["artifacts"]
    (reason,) = report["failures"]
    assert reason.startswith(message) and report["max_difference"] < 1e-5
    assert f"{path}: {reason}" in outcome.err
