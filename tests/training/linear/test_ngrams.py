"""Known n-grams: which are chosen, and the same features as in the layer."""

import numpy as np
import pytest

from kmha.layers.linear_ngrams import LARGEST_TABLE, LinearNgrams, displaced_slots, ngram_keys
from kmha.text.vocabulary import SPECIAL_TOKENS
from tests.layer_checks import to_numpy
from training.linear.ngrams import (
    PRIMES,
    displaced_size,
    find_displacements,
    in_small_tables,
    known_ngrams,
    most_ngrams,
)

V = 50


def _texts(count: int = 200, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Concatenated random texts between the tokens 2 and 3, and their lengths."""
    random = np.random.default_rng(seed)
    texts = [np.array([2, *random.integers(4, V, random.integers(0, 12)), 3], np.int32) for _ in range(count)]
    return np.concatenate(texts), np.array([len(text) for text in texts])


def test_the_layer_and_the_features_agree():
    flat, lengths = _texts()
    frequent = known_ngrams(flat, lengths, (1, 2, 3), V, 1000)
    ngrams = in_small_tables(frequent, -frequent.idf, 1000)
    assert set(ngrams.keys[:, 0]) == {1, 2, 3}
    assert max(ngrams.slots) < max(frequent.slots)
    kernel = np.random.default_rng(1).normal(size=(len(ngrams.keys), 2))
    layer = LinearNgrams(2, len(ngrams.keys), ngrams.slots, displaced=True)
    layer.build((None, None))
    layer.assign(ngrams.keys, ngrams.idf, kernel, np.array([0.5, -0.5]), ngrams.displacements)
    other_flat, other_lengths = _texts(50, seed=2)
    expected = ngrams.features(other_flat, other_lengths) @ kernel + [0.5, -0.5]
    padded, mask = np.zeros((50, 20), np.int32), np.arange(20) < other_lengths[:, None]
    padded[mask] = other_flat
    np.testing.assert_allclose(to_numpy(layer(padded, mask.astype(np.int32))), expected, atol=1e-5)


def test_ngrams_of_one_text_or_of_all_texts_are_unknown():
    flat = np.array([2, 10, 11, 3, 2, 10, 12, 3, 2, 13, 12, 3], np.int32)
    ngrams = known_ngrams(flat, np.array([4, 4, 4]), (1, 2), V, 100)
    known = [tuple(key) for key in ngrams.keys]
    # Tokens 10 and 12, and the bigrams 2 10 and 12 3.
    assert [key[:2] for key in known if key[0] == 1] == [(1, 10), (1, 12)]
    assert sum(key[0] == 2 for key in known) == 2
    np.testing.assert_allclose(ngrams.idf, np.log(4 / 3) + 1)


@pytest.mark.parametrize(("outputs", "expected"), [(2, 100_000), (50, 40_000), (500, 10_000)])
def test_the_size_of_the_weights_is_limited_but_not_below_what_hundreds_of_labels_need(outputs, expected):
    assert most_ngrams(outputs) == expected


@pytest.mark.parametrize(
    ("several", "alone", "expected"), [(False, False, 80_000), (True, False, 40_000), (True, True, 12_000)]
)
def test_several_labels_and_models_without_an_encoder_have_fewer_ngrams(several, alone, expected):
    assert most_ngrams(25, several, alone) == expected


def test_the_most_frequent_ngrams_are_candidates():
    flat, lengths = _texts()
    every = known_ngrams(flat, lengths, (1,), V, 1000)
    ngrams = known_ngrams(flat, lengths, (1,), V, 10)
    assert len(ngrams.keys) == 10
    assert ngrams.idf.max() <= np.sort(every.idf)[9] + 1e-9


def test_the_most_important_ngrams_are_known():
    flat, lengths = _texts()
    frequent = known_ngrams(flat, lengths, (1, 2), V, 1000)
    importance = np.random.default_rng(3).random(len(frequent.keys))
    chosen = in_small_tables(frequent, importance, 100)
    expected = np.sort(np.argsort(-importance)[:100])
    features = frequent.features(flat, lengths).toarray()[:, expected]
    np.testing.assert_allclose(chosen.idf, frequent.idf[expected])
    np.testing.assert_array_equal(chosen.features(flat, lengths).toarray() > 0, features > 0)


@pytest.mark.parametrize("count", [1, 3, 50, 700, 20_000])
def test_ngrams_have_different_slots_in_a_table_that_is_almost_full(count):
    random = np.random.default_rng(count)
    hashes, fingerprints = random.integers(0, LARGEST_TABLE, count), random.integers(0, 8209, count)
    size = displaced_size(count)
    displacements, has_slot = find_displacements(hashes, fingerprints, np.ones(count), size)
    slots = to_numpy(displaced_slots(hashes, fingerprints, displacements, size))[has_slot]
    assert len(np.unique(slots)) == len(slots) >= count - count // 100
    assert 0 <= slots.min() and slots.max() < size


def test_the_most_important_of_colliding_ngrams_gets_the_slot():
    hashes, fingerprints = np.array([5, 9, 6]), np.zeros(3, np.int64)
    # One group: the first two have the same slot whatever its displacement is.
    _, has_slot = find_displacements(hashes, fingerprints, np.array([1.0, 2.0, 0.5]), 4)
    np.testing.assert_array_equal(has_slot, [False, True, True])
    # More n-grams than slots.
    _, has_slot = find_displacements(np.arange(20), np.zeros(20, np.int64), np.arange(20.0), 16)
    assert has_slot.sum() <= 16 and has_slot[-1]


def test_pairs_of_frequent_tokens_have_different_slots():
    """Frequent tokens have small ids, so that hashes have a structure."""
    pairs = np.stack(np.meshgrid(np.arange(1, 101), np.arange(1, 101)), axis=-1).reshape(-1, 2)
    hashes, fingerprints = (
        to_numpy(each)[:, 1] for each in ngram_keys(pairs.astype(np.int32), 2, LARGEST_TABLE)
    )
    _, has_slot = find_displacements(hashes, fingerprints, np.ones(len(pairs)), displaced_size(len(pairs)))
    assert has_slot.mean() > 0.99


def test_texts_without_ngrams_have_no_features():
    ngrams = known_ngrams(*_texts(), (1, 2), V, 1000)
    assert ngrams.features(np.zeros(0, np.int32), np.array([0, 0])).nnz == 0
    text = np.array([2, 3], np.int32), np.array([2])
    empty = in_small_tables(known_ngrams(*text, (1, 2), V, 1000), np.zeros(0), 1000)
    assert empty.features(*_texts(5)).shape == (5, 0)


@pytest.mark.parametrize("size", PRIMES)
def test_pairs_of_frequent_tokens_spread_over_the_slots(size):
    """Frequent tokens have small ids, so that a structured hash has many collisions."""
    ids = np.arange(1, 1 + int(np.sqrt(size / 4)))
    pairs = np.stack(np.meshgrid(ids, ids), axis=-1).reshape(-1, 2).astype(np.int32)
    slots = to_numpy(ngram_keys(pairs, 2, size)[0])[:, 1]
    # Random hashes would leave about 0.88.
    assert len(np.unique(slots)) > 0.85 * len(pairs)


def test_tokens_that_no_text_has_are_known_up_to_a_limit():
    flat = np.array([2, 10, 11, 3, 2, 10, 12, 3, 2, 10, 12, 3], np.int32)
    tokens = [*SPECIAL_TOKENS, *(f"word{number}" for number in range(5, 16))]
    ngrams = known_ngrams(flat, np.array([4, 4, 4]), (1, 2), 16, 100, min_texts=1)
    more = ngrams.with_unseen(tokens, flat, 1000)
    added = more.keys[len(ngrams.keys) :]
    # Not 10, which all texts have.
    assert added.tolist() == [[1, token, 0] for token in (5, 6, 7, 8, 9, 13, 14, 15)]
    assert (more.idf[len(ngrams.keys) :] == ngrams.idf.max()).all()
    assert len(ngrams.with_unseen(tokens, flat, len(ngrams.keys) + 2).keys) == len(ngrams.keys) + 2
    assert len(ngrams.with_unseen(tokens, flat, 1).keys) == len(ngrams.keys)
    # Without single tokens there are none to add.
    pairs = known_ngrams(flat, np.array([4, 4, 4]), (2,), 16, 100)
    assert pairs.with_unseen(tokens, flat, 1000) is pairs
