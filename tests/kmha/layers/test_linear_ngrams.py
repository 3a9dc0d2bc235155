"""The linear classifier on n-grams: which n-grams a text has, their sum, and its serialization."""

import functools

import keras
import numpy as np
import pytest

from kmha.layers.linear_ngrams import LARGEST_TABLE, LinearNgrams, displaced_slots, ngram_keys, num_groups
from tests.layer_checks import compiled, to_numpy

V, SLOTS, SIZE, C = 60, 1021, 21, 3
TEXTS = np.array([[2, 10, 11, 10, 11, 3], [2, 12, 3, 0, 0, 0]], np.int32)
MASK = (TEXTS > 0).astype(np.int32)


def _key(order: int, *tokens: int, slots: int = SLOTS) -> list[int]:
    """Order, hash and fingerprint of the n-gram of some tokens."""
    hashed, fingerprint = (
        to_numpy(each)[0, -1] for each in ngram_keys(np.array([tokens], np.int32), order, slots)
    )
    return [order, int(hashed), int(fingerprint)]


@pytest.fixture(scope="module")
def layer() -> LinearNgrams:
    """A layer with weights for the tokens 10 and 12 and the bigram 10 11."""
    layer = LinearNgrams(C, 3, (V, SLOTS))
    layer.build((None, None))
    layer.assign(
        np.array([_key(1, 10), _key(1, 12), _key(2, 10, 11)]),
        np.array([1.0, 2.0, 3.0]),
        np.array([[1.0, 0, 0], [0, 1, 0], [0, 0, 1]]),
        np.array([0.1, 0.2, 0.3]),
    )
    return layer


def test_logits_are_weighted_counts_over_the_norm(layer):
    # Token 10 and bigram 10 11 twice each: sums of idf 2 and 6, norm sqrt(2 · 1 + 2 · 9).
    expected = np.array([[2, 0, 6], [0, 2, 0]]) / np.array([[20**0.5], [2.0]]) + [0.1, 0.2, 0.3]
    for function in (layer, *compiled(layer).values()):
        np.testing.assert_allclose(to_numpy(function(TEXTS, MASK)), expected, rtol=1e-6)


def test_contributions_and_the_bias_add_up_to_the_logits(layer):
    for function in (layer.contributions, *compiled(layer.contributions).values()):
        found = to_numpy(function(TEXTS, MASK))
        np.testing.assert_allclose(
            found.sum(axis=(1, 2)) + [0.1, 0.2, 0.3], to_numpy(layer(TEXTS, MASK)), atol=1e-6
        )
    # The token 10 at two positions, and the bigram 10 11 where it ends.
    np.testing.assert_array_equal(np.argwhere(found[0]), [[1, 0, 0], [2, 1, 2], [3, 0, 0], [4, 1, 2]])


def test_contributions_of_an_order_that_is_not_used_are_zero():
    layer = LinearNgrams(C, 1, (0, SLOTS))
    layer.build((None, None))
    layer.assign(np.array([_key(2, 10, 11)]), np.ones(1), np.ones((1, C)), np.zeros(C))
    found = to_numpy(layer.contributions(TEXTS, MASK))
    assert found.shape == (2, 6, 2, C)
    assert not found[:, :, 0].any() and found[0, 2, 1].all()


def test_displaced_ngrams_are_found():
    """With displacements that give five n-grams different slots."""
    pairs = [(10, 11), (11, 10), (2, 10), (2, 12), (12, 3)]
    keys = np.array([_key(2, *pair, slots=LARGEST_TABLE) for pair in pairs])
    random = np.random.default_rng(0)
    tried = (random.integers(0, SIZE, num_groups(SIZE)) for _ in range(1000))
    slots_of = functools.partial(displaced_slots, keys[:, 1], keys[:, 2], size=SIZE)
    displacements = next(each for each in tried if len(np.unique(to_numpy(slots_of(each)))) == 5)
    layer = LinearNgrams(C, 5, (0, SIZE), displaced=True)
    layer.build((None, None))
    layer.assign(keys, np.ones(5), np.ones((5, C)), np.zeros(C), {2: displacements})
    for function in (layer.ngram_rows, *compiled(layer.ngram_rows).values()):
        rows = to_numpy(function(TEXTS, MASK))[:, :, 0]
        # 2 10, then 10 11 and so on; 11 3 is unknown.
        np.testing.assert_array_equal(rows, [[0, 3, 1, 2, 1, 0], [0, 4, 5, 0, 0, 0]])


def test_a_text_without_known_ngrams_gets_the_bias(layer):
    found = to_numpy(layer(np.array([[2, 20, 21, 3], [0, 0, 0, 0]], np.int32), np.ones((2, 4), np.int32)))
    np.testing.assert_allclose(found, np.tile([0.1, 0.2, 0.3], (2, 1)), rtol=1e-6)


def test_padding_has_no_effect_whatever_its_ids(layer):
    padded = np.concatenate([TEXTS, np.full((2, 3), 12, np.int32)], axis=1)
    mask = np.concatenate([MASK, np.zeros((2, 3), np.int32)], axis=1)
    np.testing.assert_allclose(to_numpy(layer(padded, mask)), to_numpy(layer(TEXTS, MASK)), rtol=1e-6)


def test_an_unknown_ngram_in_a_used_slot_has_no_weight(layer):
    slot = _key(2, 10, 11)[1]
    pairs = np.array([[a, b] for a in range(4, V) for b in range(4, V)], np.int32)
    slots, _ = ngram_keys(pairs, 2, SLOTS)
    others = pairs[(to_numpy(slots)[:, 1] == slot) & ~((pairs == [10, 11]).all(axis=1))]
    assert len(others)
    rows = to_numpy(layer.ngram_rows(others, np.ones_like(others)))
    assert (rows[:, 1, 1] == 0).all()


def test_logits_are_scaled_by_label():
    layer = LinearNgrams(C, 1, (V,))
    layer.build((None, None))
    layer.assign(np.array([_key(1, 10)]), np.ones(1), np.ones((1, C)), np.ones(C))
    layer.scale(np.array([1.0, 2.0, 3.0], np.float32))
    np.testing.assert_allclose(to_numpy(layer(TEXTS[:1, :3], MASK[:1, :3])), [[2.0, 4.0, 6.0]], rtol=1e-6)


def test_a_layer_is_rebuilt_from_its_config(layer):
    config = keras.saving.serialize_keras_object(layer)
    assert keras.saving.deserialize_keras_object(config).get_config() == layer.get_config()
