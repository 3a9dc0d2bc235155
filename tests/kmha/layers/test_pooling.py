"""Pooling against NumPy, row by row."""

import keras
import numpy as np
import pytest
from keras import ops

from kmha.layers.pooling import MODES, Pooling, first_token_weights, mean_token_weights
from tests.layer_checks import gradients, to_numpy

B, T, D = 4, 5, 3
INPUTS = np.random.default_rng(7).normal(size=(B, T, D)).astype("float32") - 2
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 1, 0, 1, 0], [0, 0, 0, 0, 0]], "int32")


def _expected(mode, row, mask):
    real = row[mask.astype(bool)]
    if mode == "cls":
        return row[0] * mask[0]
    if not len(real):
        return np.zeros(D)
    return real.mean(axis=0) if mode == "mean" else real.max(axis=0)


@pytest.mark.parametrize("dtype", ["int32", "bool"])
@pytest.mark.parametrize("mode", MODES)
def test_equals_numpy(mode, dtype):
    pooled = to_numpy(Pooling(mode)(INPUTS, padding_mask=MASK.astype(dtype)))
    expected = [_expected(mode, row, mask) for row, mask in zip(INPUTS.astype(np.float64), MASK, strict=True)]
    np.testing.assert_allclose(pooled, expected, atol=1e-6)


@pytest.mark.parametrize("mode", MODES)
def test_the_keras_mask_is_the_padding_mask_and_without_a_mask_all_positions_count(mode):
    masked = keras.layers.Masking()(INPUTS * MASK[..., None])
    expected = to_numpy(Pooling(mode)(INPUTS, padding_mask=MASK))
    np.testing.assert_array_equal(to_numpy(Pooling(mode)(masked)), expected)
    all_real = to_numpy(Pooling(mode)(INPUTS, padding_mask=np.ones_like(MASK)))
    np.testing.assert_array_equal(to_numpy(Pooling(mode)(INPUTS)), all_real)
    assert (all_real != expected).any()


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("mode", MODES)
def test_a_row_of_padding_gives_exact_zeros_and_no_gradient(mode, policy):
    layer = Pooling(mode, dtype=policy)
    assert (to_numpy(layer(INPUTS, padding_mask=MASK))[3] == 0).all()

    def loss(inputs):
        return ops.sum(ops.cast(layer(inputs, padding_mask=MASK), "float32") ** 2)

    (gradient,) = gradients(loss, INPUTS)
    assert (gradient[MASK == 0] == 0).all() and np.isfinite(gradient).all()
    assert (gradient[0] != 0).any()


def test_the_mean_of_many_half_precision_values_is_summed_in_float32():
    ones = np.ones((1, 4096, 1), "float32")
    pooled = Pooling("mean", dtype="mixed_bfloat16")(ones, padding_mask=np.ones((1, 4096), "int32"))
    assert to_numpy(pooled).item() == 1


def test_an_unknown_mode_is_rejected():
    with pytest.raises(ValueError, match="'last'"):
        Pooling("last")


WORD_MASK = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]], "int32")
# Words of two, one and one tokens, the last word first; then one word and padding for two.
STARTS = np.array([[4, 1, 3], [1, 0, 0]], "int32")


def test_the_first_token_of_each_word():
    weights = ops.convert_to_numpy(first_token_weights(STARTS, 6))
    expected = np.zeros((2, 3, 6))
    expected[0, 0, 4] = expected[0, 1, 1] = expected[0, 2, 3] = expected[1, 0, 1] = 1
    np.testing.assert_array_equal(weights, expected)


def test_the_mean_of_each_words_tokens():
    weights = ops.convert_to_numpy(mean_token_weights(STARTS, WORD_MASK))
    expected = np.zeros((2, 3, 6))
    expected[0, 0, 4] = expected[0, 2, 3] = expected[1, 0, 1] = 1
    expected[0, 1, 1:3] = 0.5
    np.testing.assert_array_equal(weights, expected)
