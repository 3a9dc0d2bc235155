"""The linear chain's features of words: their order, their parts, and their sum."""

import numpy as np
import pytest

from kmha.layers.linear_words import LinearWords, neighbors, word_keys
from tests.kmha.layers.test_words import ids_of
from tests.layer_checks import compiled, to_numpy

SENTENCE = ["The", "old", "Ferry", "left", "at", "seven"]
SLOTS, K = 4_093, 3


def inputs(words=SENTENCE, order=None, extra_words=0, extra_tokens=0):
    """Token ids, word starts and character ids of one window, with the words in an order, and padding."""
    order = np.arange(len(words)) if order is None else np.array(order)
    tokens = np.array([2, *(4 + len(word) for word in words), 3, *[0] * extra_tokens], np.int32)
    starts = np.concatenate([1 + order, np.zeros(extra_words, int)]).astype(np.int32)
    characters = np.pad(ids_of(words, 20)[order], ((0, extra_words), (0, 0)))
    return tokens[None], starts[None], characters[None]


def keys_of(*features) -> list[set[tuple[int, int]]]:
    """Hash and fingerprint of the features of each word."""
    hashes, fingerprints = (to_numpy(each)[0].tolist() for each in word_keys(*features))
    return [
        {(a, b) for a, b in zip(*pair, strict=True) if b >= 0}
        for pair in zip(hashes, fingerprints, strict=True)
    ]


def test_neighbors_are_found_by_position():
    starts = np.array([[3, 5, 1, 7, 0], [0, 0, 0, 0, 0]], np.int32)
    before, after = (to_numpy(each).tolist() for each in neighbors(starts))
    assert before == [[2, 0, 5, 1, 5], [5] * 5]
    assert after == [[1, 3, 0, 5, 5], [5] * 5]


@pytest.mark.parametrize("with_characters", [True, False])
def test_features_do_not_depend_on_padding_or_the_order_of_the_words(with_characters):
    used = 3 if with_characters else 2
    expected = keys_of(*inputs()[:used])
    order = [2, 3, 0, 1, 4, 5]
    found = keys_of(*inputs(order=order, extra_words=3, extra_tokens=4)[:used])
    assert found[:6] == [expected[place] for place in order]
    # Two rows: a batch does not mix them.
    both = [np.concatenate([a, b]) for a, b in zip(inputs(), inputs(order=[5, 4, 3, 2, 1, 0]), strict=True)]
    hashes = to_numpy(word_keys(*both[:used])[0])
    np.testing.assert_array_equal(hashes[0], hashes[1, ::-1])


def test_words_share_features_as_their_spelling_and_neighbors_do():
    def shared(first, second, place):
        return len(keys_of(*inputs(first))[place] & keys_of(*inputs(second))[place])

    everything = len(keys_of(*inputs(["the", "ferry", "left"]))[1])
    # The word itself in its own case, its shape, and two features of shapes.
    assert 0 < everything - shared(["the", "ferry", "left"], ["the", "Ferry", "left"], 1) <= 4
    # Two affixes of each length and trigrams, without neighbors.
    assert shared(["a", "walking", "b"], ["c", "talking", "d"], 1) >= 4
    # Single neighbors, their pairs and shapes, but nothing of the word itself.
    assert shared(["the", "old", "x", "left", "at"], ["the", "old", "5-", "left", "at"], 2) >= 8
    assert not keys_of(*inputs(["walk"]))[0] & keys_of(*inputs(["a", "b", "B9", "c", "d"]))[2]


@pytest.fixture
def layer() -> LinearWords:
    """A layer with weights for the features of the first word."""
    layer = LinearWords(K, 4, SLOTS)
    layer.build((None, None))
    keys = np.array([[a % SLOTS, b] for a, b in sorted(keys_of(*inputs())[0])[:4]])
    layer.assign(keys, np.arange(12.0).reshape(4, K), np.array([0.5, 0.25, 0.0]))
    return layer


def test_scores_are_sums_of_the_weights_of_known_features(layer):
    for function in (layer, *compiled(layer).values()):
        found = to_numpy(function(*inputs()))
        np.testing.assert_allclose(found[0, 0], [18.5, 22.25, 26.0])
        # Words without known features.
        np.testing.assert_allclose(found[0, 3:], np.tile([0.5, 0.25, 0.0], (3, 1)))


def test_scores_are_scaled(layer):
    layer.scale(2.0)
    np.testing.assert_allclose(to_numpy(layer(*inputs()))[0, 0], [37.0, 44.5, 52.0])


@pytest.mark.parametrize(
    ("used", "hashes", "fingerprints"), [(3, 37_629_465, 629_454), (2, 9_968_230, 327_189)]
)
def test_hashes_of_saved_weights_do_not_change(used, hashes, fingerprints):
    found = [int(to_numpy(each).astype(np.int64).sum()) for each in word_keys(*inputs()[:used])]
    assert found == [hashes, fingerprints]
