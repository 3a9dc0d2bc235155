"""Runs that read long texts in windows: every export predicts the same, and none has attention weights."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from export.graph import check_attention
from export.onnx.__main__ import main as onnx
from export.savedmodel.endpoints import ClassifierEndpoints
from export.savedmodel.predictor import load_savedmodel
from export.savedmodel.write import write_savedmodel
from export.tflite.__main__ import main as tflite
from export.tflite.write import write_tflite
from export.verification.layer_outputs import layer_outputs, padded, sequences
from export.verify import main as verify
from kmha.errors import InputError
from tests.bundles import TEXTS, WINDOWS, make_bundle
from tests.command_runs import call, refused, write_csv
from tests.export.conftest import unbounded


@functools.cache
def bundle(window_pooling="mean"):
    """Returns a bundle that all tests share. Do not change it."""
    return make_bundle(windows={**WINDOWS, "window_pooling": window_pooling})


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that pools windows by attention."""
    folder = tmp_path_factory.mktemp("windowed") / "run"
    bundle("attention").save(folder)
    return folder


@pytest.fixture(scope="module")
def exported(run):
    """The folder of the run, its exports, and rows with their labels."""
    folder, made = run.parent, bundle("attention")
    labels = [prediction["label"] for prediction in made.predict(TEXTS)]
    write_csv(folder / "rows.csv", list(zip(TEXTS, labels, strict=True)))
    write_savedmodel(made, folder / "served", xla=True)
    write_tflite(made, folder / "any.tflite", [None], with_vectors=True)
    assert call(onnx, folder / "run", folder / "a.onnx", "--embed").status == 0
    return folder


@pytest.mark.second
def test_every_export_passes_verify(exported):
    artifacts = [exported / name for name in ("served/1", "any.tflite", "a.onnx")]
    outcome = call(verify, exported / "run", *artifacts, "--data", exported / "rows.csv")
    assert outcome.status == 0, outcome.err
    assert all(each["max_difference"] < 1e-4 for each in outcome.json["artifacts"]), outcome.json


@pytest.mark.second
@pytest.mark.parametrize(("window_pooling", "quantize"), [("max", "none"), ("mean", "int8")])
def test_other_poolings_of_windows_have_built_in_ops_too(tmp_path, window_pooling, quantize):
    with unbounded():
        difference = write_tflite(bundle(window_pooling), tmp_path / "a.tflite", [24], quantize)[
            "max_difference"
        ]
    assert difference < (1e-4 if quantize == "none" else 0.1)


@pytest.mark.second
def test_the_compiled_signature_gives_the_same_predictions(exported):
    made = bundle("attention")
    features = padded(made, sequences(made, [text.encode() for text in TEXTS]), 24)
    found = load_savedmodel(exported / "served" / "1", "predict_ids_xla")(**features)["probabilities"]
    np.testing.assert_allclose(found, made.probabilities(TEXTS), atol=1e-5)


def test_attention_of_windows_is_not_exported(run, tmp_path):
    signatures = ClassifierEndpoints(bundle()).signatures()
    assert "explain" not in signatures and {"predict_text", "classify", "embed"} <= signatures.keys()
    for command, name in ((tflite, "b.tflite"), (onnx, "b.onnx")):
        message = refused(tmp_path, command, str(run), str(tmp_path / name), "--attention")
        assert (
            message
            == "--attention: expected a run that reads whole texts, got one that reads windows of 10 tokens"
        )
    with pytest.raises(InputError, match="--attention"):
        check_attention(bundle())
    check_attention(make_bundle())


@pytest.mark.parametrize("window_pooling", ["mean", "attention"])
def test_the_layers_are_those_that_the_model_computes(window_pooling):
    made = bundle(window_pooling)
    features = padded(made, sequences(made, [text.encode() for text in TEXTS]), 24)
    layers = layer_outputs(made, features)
    names = [
        "tokenizer",
        "windows",
        "embedding",
        "block_0 attention weights",
        "block_0",
        "pooling",
        "window pooling",
    ]
    assert list(layers) == [*names, "logits", "probabilities"]
    np.testing.assert_allclose(layers["probabilities"], made.probabilities(TEXTS), atol=1e-6)
    count = made.model.windows.count(24)
    assert layers["windows"].shape == (len(TEXTS) * count, 10)
    vectors = tf.constant(layers["window pooling"])
    np.testing.assert_allclose(made.model.head(made.model.normalize(vectors)), layers["logits"], atol=1e-5)
