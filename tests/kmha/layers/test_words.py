"""From tokens to words, from characters to words, and what stands beside each position."""

import keras
import numpy as np
import pytest
from keras import ops

from kmha.layers.local_context import LocalContext
from kmha.layers.words import SpellingEncoder, affix_buckets, first_token_weights, mean_token_weights

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


def test_a_words_vector_depends_on_its_characters_alone():
    layer = SpellingEncoder(20, 6)
    layer.build((None, None, None))
    ids = np.array([[[3, 4, 5, 0], [6, 0, 0, 0]], [[0, 0, 0, 0], [6, 0, 0, 0]]], "int32")
    found = ops.convert_to_numpy(layer(ids))
    np.testing.assert_allclose(found[0, 1], found[1, 1], atol=1e-6)
    assert not found[1, 0].any() and np.abs(found[0, 0]).max() > 0
    wider = np.pad(ids, ((0, 0), (0, 1), (0, 3)))
    np.testing.assert_allclose(ops.convert_to_numpy(layer(wider))[:, :2], found, atol=1e-6)
    other = ids.copy()
    other[0, 0, 1] = 9
    assert np.abs(ops.convert_to_numpy(layer(other))[0, 0] - found[0, 0]).max() > 1e-4


def test_affixes_are_told_by_their_characters_and_their_side():
    words = ["going", "ring", "goat", "a", "", "gnio"]
    ids = np.zeros((len(words), 8), "int32")
    for row, word in enumerate(words):
        ids[row, : len(word)] = [ord(character) for character in word]
    found = ops.convert_to_numpy(affix_buckets(ids, 32_749))
    assert found.shape == (6, 8) and found.min() >= 0 and found.max() < 32_749
    begin, end = found[:, :4], found[:, 4:]
    same = [[int((one == other).sum()) for other in (begin[0], begin[2])] for one in begin]
    # "going" and "goat" share "g" and "go", "going" and "gnio" the "g" alone.
    assert (same[2][0], same[1][0], same[5][0]) == (2, 0, 1)
    # "going" ends as "ring" does but for the fourth character.
    assert [int((each == end[0]).sum()) for each in end] == [4, 3, 0, 0, 0, 0]
    assert not set(begin[3]) & set(end[3])
    wider = ops.convert_to_numpy(affix_buckets(np.pad(ids, ((0, 0), (0, 5))), 32_749))
    np.testing.assert_array_equal(wider, found)


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
    with pytest.raises(ValueError, match=f"an odd number of at least 1, given {width}"):
        LocalContext(width)
