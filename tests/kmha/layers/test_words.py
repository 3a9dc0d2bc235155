"""From tokens to words, and what stands beside each position."""

import keras
import numpy as np
import pytest
from keras import ops

from kmha.layers.local_context import LocalContext
from kmha.layers.pooling import first_token_weights, mean_token_weights

MASK = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]], "int32")
# Words of two, one and one tokens; the last is listed first. Then one word, and room for two more.
STARTS = np.array([[4, 1, 3], [1, 0, 0]], "int32")


def test_the_first_token_of_each_word():
    weights = ops.convert_to_numpy(first_token_weights(STARTS, 6))
    expected = np.zeros((2, 3, 6))
    expected[0, 0, 4] = expected[0, 1, 1] = expected[0, 2, 3] = expected[1, 0, 1] = 1
    np.testing.assert_array_equal(weights, expected)


def test_the_mean_of_each_words_tokens():
    weights = ops.convert_to_numpy(mean_token_weights(STARTS, MASK))
    expected = np.zeros((2, 3, 6))
    expected[0, 0, 4] = expected[0, 2, 3] = expected[1, 0, 1] = 1
    expected[0, 1, 1:3] = 0.5
    np.testing.assert_array_equal(weights, expected)


@pytest.mark.parametrize("width", [1, 3, 5])
def test_a_position_sees_its_neighbours_and_no_padding(width):
    keras.utils.set_random_seed(0)
    layer = LocalContext(width)
    layer.build((None, None, 4))
    x = np.random.default_rng(0).normal(size=(1, 6, 4)).astype("float32")
    mask = np.array([[1, 1, 1, 1, 0, 0]], "int32")
    found = ops.convert_to_numpy(layer(x, mask))
    changed = x.copy()
    changed[0, 4:] = 100
    np.testing.assert_allclose(ops.convert_to_numpy(layer(changed, mask))[0, :4], found[0, :4], atol=1e-6)
    np.testing.assert_allclose(ops.convert_to_numpy(layer(x[:, :4], mask[:, :4]))[0], found[0, :4], atol=1e-6)
    changed = x.copy()
    changed[0, 0] += 1
    moved = np.abs(ops.convert_to_numpy(layer(changed, mask)) - found).max(axis=2)[0] > 1e-6
    assert moved[: 1 + width // 2].all() and not moved[1 + width // 2 :].any()


@pytest.mark.parametrize("width", [0, 2])
def test_a_width_that_has_no_middle_is_refused(width):
    with pytest.raises(ValueError, match=f"an odd number of at least 1, got {width}"):
        LocalContext(width)
