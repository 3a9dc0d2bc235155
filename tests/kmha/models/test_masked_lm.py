"""The masked language model: logits compared with NumPy, invariance, gradients, and saving."""

import functools

import keras
import numpy as np
import pytest
import scipy.special
import tensorflow as tf

from kmha.features import MASK_POSITIONS, PADDING_MASK, TOKEN_IDS
from kmha.models.masked_lm import MaskedLanguageModel, gathered
from tests.kmha.models.tiny_features import CONFIGS, MAX_LENGTH, V, features
from tests.layer_checks import fill_weights, to_numpy

ROWS = ([2, 9, 4, 7, 3], [2, 4, 3], [2, 8, 8, 4, 4, 11, 12, 3])
POSITIONS = np.array([[2, 3, 0], [1, 0, 0], [3, 4, 6]], np.int32)
every_config = pytest.mark.parametrize("name", CONFIGS)


@functools.cache
def model_of(name) -> MaskedLanguageModel:
    model = MaskedLanguageModel(CONFIGS[name])
    model.build()
    fill_weights(model)
    return model


def masked(rows=ROWS, positions=POSITIONS, length=None):
    given = features(rows, length)
    return {TOKEN_IDS: given[TOKEN_IDS], PADDING_MASK: given[PADDING_MASK], MASK_POSITIONS: positions}


def normed(x, layer):
    gain, shift = (to_numpy(weight) for weight in (layer.gamma, layer.beta))
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + layer.epsilon) * gain + shift


@every_config
def test_logits_are_those_of_numpy(name):
    model, given = model_of(name), masked()
    hidden = to_numpy(model.encoder({key: given[key] for key in (TOKEN_IDS, PADDING_MASK)}))
    hidden = np.stack([row[places] for row, places in zip(hidden, POSITIONS, strict=True)]).astype("float64")
    if model.masked_norm is not None:
        hidden = normed(hidden, model.masked_norm)
    hidden = hidden @ to_numpy(model.transform.kernel) + to_numpy(model.transform.bias)
    hidden = hidden * scipy.special.ndtr(hidden)
    table = to_numpy(model.encoder.embedding.tokens.embeddings)
    expected = normed(hidden, model.transform_norm) @ table.T + to_numpy(model.bias)
    np.testing.assert_allclose(to_numpy(model(given)), expected, rtol=0, atol=2e-5)


def test_vectors_are_taken_from_their_own_row():
    vectors = np.random.default_rng(0).normal(size=(3, 7, 4)).astype("float32")
    positions = np.array([[6, 0], [1, 1], [0, 5]], np.int32)
    expected = [[vectors[row, place] for place in places] for row, places in enumerate(positions)]
    np.testing.assert_array_equal(to_numpy(gathered(vectors, positions)), expected)


@every_config
def test_neither_padding_nor_other_rows_change_a_prediction(name):
    model = model_of(name)
    together = to_numpy(model(masked(length=MAX_LENGTH)))
    np.testing.assert_allclose(to_numpy(model(masked())), together, rtol=0, atol=1e-5)
    alone = to_numpy(model(masked(ROWS[:1], POSITIONS[:1])))
    np.testing.assert_allclose(alone[0], together[0], rtol=0, atol=1e-5)
    disturbed = masked(length=MAX_LENGTH)
    disturbed[TOKEN_IDS] = np.where(disturbed[PADDING_MASK] > 0, disturbed[TOKEN_IDS], 5).astype("int32")
    np.testing.assert_allclose(to_numpy(model(disturbed)), together, rtol=0, atol=1e-5)


def test_mask_positions_may_be_in_any_order():
    model = model_of("BERT's form")
    expected = to_numpy(model(masked()))
    turned = to_numpy(model(masked(positions=POSITIONS[:, ::-1].copy())))
    np.testing.assert_allclose(turned, expected[:, ::-1], rtol=0, atol=1e-6)


def test_mask_predictions_are_token_probabilities():
    model = model_of("rotary")
    logits = model(masked())
    probabilities = to_numpy(model.probabilities(logits))
    assert probabilities.shape == (3, 3, V)
    np.testing.assert_allclose(probabilities.sum(-1), 1, atol=1e-5)
    np.testing.assert_array_equal(to_numpy(model.decode(logits)), probabilities.argmax(-1))


def test_the_tied_table_has_gradients_of_input_and_output():
    """Its gradient is whole, not of rows, and equals a difference quotient."""
    model = model_of("BERT's form")
    table = model.encoder.embedding.tokens.embeddings.value

    def loss():
        return tf.reduce_sum(tf.sin(model(masked())))

    with tf.GradientTape() as tape:
        value = loss()
    gradient = tape.gradient(value, table)
    assert isinstance(gradient, tf.Tensor)
    before = table.numpy()
    # A token in the input, and a token in the targets only.
    for token in (9, 20):
        direction = np.zeros_like(before)
        direction[token] = np.random.default_rng(token).normal(size=before.shape[1])
        ends = []
        for step in (1e-2, -1e-2):
            table.assign(before + step * direction)
            ends.append(float(loss()))
        table.assign(before)
        slope = float(tf.reduce_sum(gradient * direction))
        assert slope == pytest.approx((ends[0] - ends[1]) / 2e-2, rel=0.03, abs=0.02)


def test_unmasked_positions_get_no_gradient():
    vectors = tf.constant(np.random.default_rng(0).normal(size=(2, 5, 3)), tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(vectors)
        total = tf.reduce_sum(gathered(vectors, tf.constant([[1, 3], [0, 0]])))
    found = tf.convert_to_tensor(tape.gradient(total, vectors)).numpy()
    np.testing.assert_array_equal(found[:, :, 0], [[0, 1, 0, 1, 0], [2, 0, 0, 0, 0]])


def test_a_saved_model_is_equal_after_loading(tmp_path):
    model = model_of("from scratch")
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras", compile=False, safe_mode=True)
    assert isinstance(again, MaskedLanguageModel) and again.get_config() == model.get_config()
    assert [v.path for v in again.trainable_variables] == [v.path for v in model.trainable_variables]
    np.testing.assert_array_equal(to_numpy(again(masked())), to_numpy(model(masked())))
