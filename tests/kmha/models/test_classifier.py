"""The classifier: invariance of predictions, decoding, and saving."""

import functools

import keras
import numpy as np
import pytest
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from kmha.models.classifier import TextClassifier
from tests.kmha.models.tiny_features import CONFIGS, MAX_LENGTH, V, features, random_features
from tests.layer_checks import fill_weights, to_numpy

LABELS = 3
POOLINGS = {"BERT's form": "cls", "from scratch": "mean", "rotary": "max", "sinusoidal": "mean"}
every_config = pytest.mark.parametrize("name", CONFIGS)
rows_of_tokens = st.lists(st.lists(st.integers(1, V - 1), max_size=MAX_LENGTH), min_size=2, max_size=4)


@functools.cache
def _classifier(name, multi_label=False):
    model = TextClassifier(CONFIGS[name], LABELS, multi_label, POOLINGS[name])
    model.build()
    fill_weights(model)
    return model


def _logits(name, rows, length=None):
    return to_numpy(_classifier(name)(features(rows, length)))


@every_config
@settings(max_examples=5, deadline=None)
@given(rows=rows_of_tokens, extra=st.integers(1, MAX_LENGTH))
def test_padding_never_changes_a_prediction(name, rows, extra):
    length = max(map(len, rows)) or 1
    longer = min(length + extra, MAX_LENGTH)
    np.testing.assert_allclose(_logits(name, rows, longer), _logits(name, rows, length), rtol=0, atol=1e-5)


@every_config
@settings(max_examples=5, deadline=None)
@given(rows=rows_of_tokens, data=st.data())
def test_batch_composition_never_changes_a_prediction(name, rows, data):
    together = _logits(name, rows, MAX_LENGTH)
    order = data.draw(st.permutations(range(len(rows))))
    shuffled = _logits(name, [rows[i] for i in order], MAX_LENGTH)
    np.testing.assert_allclose(shuffled, together[order], rtol=0, atol=1e-5)
    alone = _logits(name, rows[:1], len(rows[0]) or 1)
    np.testing.assert_allclose(alone[0], together[0], rtol=0, atol=1e-5)


@every_config
def test_values_at_padding_never_change_a_prediction(name):
    given_features = random_features()
    expected = to_numpy(_classifier(name)(given_features))
    padding = given_features["padding_mask"] == 0
    noisy = given_features | {
        field: np.where(padding, other, given_features[field]).astype("int32")
        for field, other in (("token_ids", V - 1), ("segment_ids", 1))
    }
    np.testing.assert_allclose(to_numpy(_classifier(name)(noisy)), expected, rtol=0, atol=1e-5)


@every_config
def test_a_row_of_padding_equals_a_zero_vector(name):
    logits = _logits(name, [[5, 6], []])
    model = _classifier(name)
    pooled = np.zeros((1, model.encoder_config.hidden_dim), "float32")
    pooled = pooled if model.pooled_norm is None else model.pooled_norm(pooled)
    np.testing.assert_allclose(logits[1], to_numpy(model.head(pooled))[0], atol=1e-6)
    assert np.isfinite(logits).all() and np.abs(logits[0] - logits[1]).max() > 1e-3


LOGITS = np.array([[2.0, -1.0, 0.5], [0.0, 3.0, 3.5], [-2.0, -2.0, -3.0]], "float32")


def test_decoding_of_one_label():
    model = _classifier("rotary")
    np.testing.assert_allclose(
        to_numpy(model.probabilities(LOGITS)), scipy.special.softmax(LOGITS, -1), atol=1e-6
    )
    predictions = model.decode(LOGITS)
    assert keras.backend.standardize_dtype(predictions.dtype) == "int32"
    np.testing.assert_array_equal(to_numpy(predictions), [0, 2, 0])


@pytest.mark.parametrize(
    ("thresholds", "expected"),
    [
        (None, [[1, 0, 1], [1, 1, 1], [0, 0, 0]]),
        ([0.9, 0.9, 0.9], [[0, 0, 0], [0, 1, 1], [0, 0, 0]]),
        ([0.1, 0.2, 0.99], [[1, 1, 0], [1, 1, 0], [1, 0, 0]]),
    ],
)
def test_decoding_of_several_labels(thresholds, expected):
    model = _classifier("rotary", multi_label=True)
    np.testing.assert_allclose(to_numpy(model.probabilities(LOGITS)), scipy.special.expit(LOGITS), atol=1e-6)
    predictions = model.decode(ops.convert_to_tensor(LOGITS), thresholds)
    assert keras.backend.standardize_dtype(predictions.dtype) == "int32"
    np.testing.assert_array_equal(to_numpy(predictions), expected)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_logits_are_float32_under_every_policy(policy):
    model = TextClassifier(CONFIGS["from scratch"], LABELS, dtype=policy)
    logits, weights = model(random_features(), return_attention_weights=True)
    assert {keras.backend.standardize_dtype(x.dtype) for x in (logits, *weights)} == {"float32"}
    assert np.isfinite(to_numpy(logits)).all()


def test_a_linear_path_is_added_and_removed_with_the_weights_of_the_encoder():
    model = _classifier("from scratch")
    rows = features([[5, 6, 7], [8]])
    joined = model.with_linear_path(6, (V, 7))
    assert joined.linear is not None and joined.linear.rows == 6
    np.testing.assert_array_equal(to_numpy(joined(rows)), to_numpy(model(rows)))
    joined.linear.bias.assign([1.0, 2.0, 3.0])
    np.testing.assert_allclose(to_numpy(joined(rows)) - to_numpy(model(rows)), [[1, 2, 3]] * 2, rtol=1e-5)
    without = joined.without_linear_path()
    assert without.linear is None
    np.testing.assert_array_equal(to_numpy(without(rows)), to_numpy(model(rows)))


def test_dropout_acts_in_training_only():
    model = _classifier("from scratch")
    batch = random_features()
    np.testing.assert_array_equal(to_numpy(model(batch)), to_numpy(model(batch, training=False)))
    assert np.abs(to_numpy(model(batch, training=True)) - to_numpy(model(batch))).max() > 1e-3


@every_config
def test_a_saved_model_is_equal_after_loading_in_safe_mode(name, tmp_path):
    model = _classifier(name, multi_label=True)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    assert isinstance(again, TextClassifier)
    assert again.get_config() == model.get_config() and again.encoder_config == CONFIGS[name]
    np.testing.assert_array_equal(to_numpy(again(random_features())), to_numpy(model(random_features())))
