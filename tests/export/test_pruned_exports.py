"""Pruned runs with blocks of different sizes: every export predicts the same and has attention weights."""

import numpy as np
import pytest
import tensorflow as tf

from export.graph import ids_function, input_names
from export.huggingface import main as huggingface
from export.onnx.write import write_onnx
from export.savedmodel.endpoints import ClassifierEndpoints
from export.tflite.write import write_tflite
from export.verify import main as verify
from tests.bundles import TEXTS, make_tagger_bundle
from tests.command_runs import call, refused, write_csv
from tests.pruned_models import SIZES, TWO_BLOCKS, features_of, uneven_bundle, uneven_pair_bundle


@pytest.mark.second
def test_every_export_passes_verify(tmp_path):
    bundle = uneven_bundle()
    bundle.save(tmp_path / "run")
    labels = [prediction["label"] for prediction in bundle.predict(TEXTS)]
    rows = write_csv(tmp_path / "rows.csv", list(zip(TEXTS, labels, strict=True)))
    write_tflite(bundle, tmp_path / "a.tflite", [16], "none")
    write_onnx(bundle, tmp_path / "a.onnx")
    artifacts = [tmp_path / "a.tflite", tmp_path / "a.onnx"]
    outcome = call(verify, tmp_path / "run", *artifacts, "--data", rows)
    assert outcome.status == 0, outcome.err


def test_pruned_heads_are_zeros():
    bundle = uneven_bundle()
    shown = ClassifierEndpoints(bundle).explain(tf.constant(TEXTS[:2]))["attention"].numpy()
    assert shown.shape[1:3] == (2, 3)
    np.testing.assert_allclose(shown[0].sum(axis=-1)[0, :, 0], 1, atol=1e-5)
    assert not shown[:, 1, 1:].any() and shown[:, 1, 0].any()


@pytest.mark.parametrize("kind", ["pairs", "tags"])
def test_pairs_and_tags_have_pruned_heads(kind):
    sizes = {**TWO_BLOCKS, "layer_sizes": SIZES}
    bundle = uneven_pair_bundle() if kind == "pairs" else make_tagger_bundle(**sizes)
    features = features_of(bundle)
    found = ids_function(bundle, with_attention=True)(*(features[name] for name in input_names(bundle)))
    heads = {name: each.shape[2] for name, each in found.items() if name.startswith("attention")}
    expected = {"attention": 3}
    if kind == "pairs":
        expected = {"attention_a": 2, "attention_b": 2, "attention_a_to_b": 1, "attention_b_to_a": 1}
    assert heads == expected


def test_a_pruned_encoder_is_not_exported_to_bert(tmp_path):
    uneven_bundle(norm="post", ngram_buckets=0).save(tmp_path / "run")
    message = refused(tmp_path, huggingface, str(tmp_path / "run"), str(tmp_path / "out"))
    assert "layer_sizes must be none, all blocks alike, got those of a pruned encoder" in message
