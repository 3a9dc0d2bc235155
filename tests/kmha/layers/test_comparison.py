"""Comparison of vectors with manual examples."""

import math
from collections import Counter

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from kmha.layers.comparison import (
    MARKS,
    ORDERS,
    SHARES,
    Standardise,
    TokenOverlap,
    comparison_features,
    shared_ngrams,
    unit_vectors,
)
from tests.layer_checks import gradients, run, to_numpy

A, B = np.array([[1.0, -2.0], [3.0, 0.5]], "float32"), np.array([[4.0, -2.0], [-1.0, 2.0]], "float32")


def test_both_vectors_their_distance_and_their_product():
    found = [to_numpy(each) for each in run(comparison_features, A, B)]
    expected = [A, B, [[3, 0], [4, 1.5]], [[4, 4], [-3, 1]]]
    np.testing.assert_array_equal(found, expected)


def test_symmetric_features_are_the_same_in_both_orders():
    there, back = (
        np.stack([to_numpy(x) for x in comparison_features(*pair, symmetric=True)])
        for pair in ((A, B), (B, A))
    )
    np.testing.assert_array_equal(there, back)
    np.testing.assert_array_equal(there, [[[5, -4], [2, 2.5]], [[3, 0], [4, 1.5]], [[4, 4], [-3, 1]]])


def test_unit_vectors_have_length_one_over_all_parts():
    np.testing.assert_allclose(to_numpy(unit_vectors([A[:1] * 1e6])), A[:1] / np.sqrt(5), rtol=1e-6)
    joined = to_numpy(unit_vectors([A, B]))
    expected = np.concatenate([A, B], axis=1)
    np.testing.assert_allclose(joined, expected / np.linalg.norm(expected, axis=1, keepdims=True), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_zeros_stay_zeros_in_every_precision(dtype):
    found = unit_vectors([ops.cast(np.array([[0, 0], [300, 400]]), dtype)])
    assert str(to_numpy(found).dtype) == "float32"
    # 400 squared overflows float16.
    np.testing.assert_allclose(to_numpy(found), [[0, 0], [0.6, 0.8]], atol=1e-6)


def test_gradients_of_zeros_and_of_equal_vectors_are_finite():
    zeros = np.zeros((1, 2), "float32")
    for a, b in ((zeros, zeros), (A, A)):
        found = gradients(
            lambda x, y: ops.sum(unit_vectors(comparison_features(x, y)) * unit_vectors([x, y, x, y])), a, b
        )
        assert all(np.isfinite(each).all() for each in found)


def test_standardized_numbers_have_mean_zero_and_spread_one():
    inputs = np.random.default_rng(0).normal(3, [0.01, 2, 40], (50, 3)).astype("float32")
    layer = Standardise()
    np.testing.assert_array_equal(to_numpy(layer(inputs)), inputs)
    layer.assign(inputs.mean(axis=0), 1 / inputs.std(axis=0))
    found = to_numpy(layer(inputs))
    np.testing.assert_allclose(found.mean(axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(found.std(axis=0), 1, rtol=1e-4)


def test_assigned_mean_and_scale_are_saved_and_not_trained(tmp_path):
    symbol = keras.Input((2,))
    layer = Standardise()
    model = keras.Model(symbol, layer(symbol))
    layer.assign([1.0, -2.0], [2.0, 0.5])
    assert not layer.trainable_weights
    model.save(tmp_path / "scale.keras")
    again = keras.saving.load_model(tmp_path / "scale.keras", safe_mode=True)
    np.testing.assert_array_equal(to_numpy(again(A)), [[0, 0], [4, 1.25]])


# Default ids: padding, unknown, start, end, mask; then words.
PAD, UNKNOWN, START, END, FIRST_WORD, V = 0, 1, 2, 3, 5, 12
ROWS, T, S = 2, 5, 4
RARITY = np.linspace(0.1, 1, V).astype("float32")
ids = st.integers(0, 6)


def _rows(values, length):
    row = st.lists(values, min_size=length, max_size=length)
    return st.lists(row, min_size=ROWS, max_size=ROWS)


def _python_shared(ids_a, ids_b, words_a, words_b, order):
    """Compares every n-gram of a with every n-gram of b, token by token."""
    found = np.zeros((len(ids_a), len(ids_a[0]), len(ids_b[0])))
    for row, t, s in np.ndindex(*found.shape):
        steps = range(order)
        found[row, t, s] = t >= order - 1 <= s and all(
            ids_a[row][t - n] == ids_b[row][s - n] and words_a[row][t - n] and words_b[row][s - n]
            for n in steps
        )
    return found


@settings(max_examples=15)
@given(_rows(ids, T), _rows(ids, S), _rows(st.sampled_from([0, 1, 1, 1]), T), _rows(st.just(1), S))
def test_shared_ngrams_equal_a_python_loop(ids_a, ids_b, words_a, words_b):
    arrays = [np.array(x, "int32") for x in (ids_a, ids_b)]
    arrays += [np.array(x, "float32") for x in (words_a, words_b)]
    for order, found in zip(ORDERS, run(shared_ngrams, *arrays), strict=True):
        np.testing.assert_array_equal(
            to_numpy(found), _python_shared(ids_a, ids_b, words_a, words_b, order), str(order)
        )


def test_only_the_requested_orders_are_returned():
    text, words = np.array([[7, 8, 7, 8]], "int32"), np.ones((1, 4), "float32")
    (found,) = shared_ngrams(text, text, words, words, orders=(3,))
    np.testing.assert_array_equal(to_numpy(found)[0], np.diag([0, 0, 1, 1]))


def _layer():
    layer = TokenOverlap(V, FIRST_WORD)
    layer.build()
    layer.rarity.assign(RARITY)
    return layer


LAYER = _layer()


def _overlap(a, b, mask_a=None, mask_b=None):
    a, b = np.array(a, "int32"), np.array(b, "int32")
    masks = [np.array((x > PAD) if m is None else m, "int32") for x, m in ((a, mask_a), (b, mask_b))]
    return [to_numpy(x) for x in run(LAYER, a, b, *masks)]


def test_marks_and_shares_equal_a_manual_example():
    a, b = [[START, 5, 6, 7, 8, END]], [[START, 9, 5, 6, 7, 5, END, PAD]]
    marks_a, marks_b, shares_a, shares_b = _overlap(a, b)
    r = RARITY
    # Shared, shared and rare, missing and rare, end of a shared bigram, of a shared trigram.
    nothing = [0, 0, 0, 0, 0]
    expected_a = [
        nothing,
        [1, r[5], 0, 0, 0],
        [1, r[6], 0, 1, 0],
        [1, r[7], 0, 1, 1],
        [0, 0, r[8], 0, 0],
        nothing,
    ]
    expected_b = [
        nothing,
        [0, 0, r[9], 0, 0],
        [1, r[5], 0, 0, 0],
        [1, r[6], 0, 1, 0],
        [1, r[7], 0, 1, 1],
        [1, r[5], 0, 0, 0],
        nothing,
        nothing,
    ]
    np.testing.assert_allclose(marks_a[0], expected_a, atol=1e-6)
    np.testing.assert_allclose(marks_b[0], expected_b, atol=1e-6)
    found = r[5] + r[6] + r[7]
    rare = np.array([found, r[6] + r[7], r[7]]) / (found + r[8])
    np.testing.assert_allclose(shares_a[0], [*rare, 3 / 4, 2 / 3, 1 / 2, found, math.log(5)], rtol=1e-6)
    found += r[5]
    rare = np.array([found, r[6] + r[7], r[7]]) / (found + r[9])
    np.testing.assert_allclose(shares_b[0], [*rare, 4 / 5, 2 / 4, 1 / 3, found, math.log(6)], rtol=1e-6)


def test_special_unknown_and_padding_tokens_are_never_shared():
    row = [[START, UNKNOWN, 4, END, PAD, PAD]]
    # Independent of the mask.
    for mask in (None, np.ones((1, 6))):
        marks_a, marks_b, shares_a, shares_b = _overlap(row, row, mask, mask)
        assert not np.concatenate([x.ravel() for x in (marks_a, marks_b, shares_a, shares_b)]).any()


def test_masked_words_are_not_shared():
    text = [[5, 6, 7]]
    marks, _, shares, _ = _overlap(text, text, mask_b=[[1, 0, 1]])
    np.testing.assert_array_equal(marks[0, :, 0], [1, 0, 1])
    assert not marks[0, :, 3:].any()
    found = RARITY[5] + RARITY[7]
    expected = [found / (found + RARITY[6]), 0, 0, 2 / 3, 0, 0, found, math.log(4)]
    np.testing.assert_allclose(shares[0], expected, rtol=1e-6)


@pytest.mark.parametrize("between", [UNKNOWN, END, PAD])
def test_ngrams_do_not_include_tokens_that_are_not_words(between):
    text = [[5, 6, between, 7, 8]]
    marks, _, shares, _ = _overlap(text, text)
    np.testing.assert_array_equal(marks[0, :, 0], [1, 1, 0, 1, 1])
    np.testing.assert_array_equal(marks[0, :, 3], [0, 1, 0, 0, 1])
    assert not marks[0, :, 4].any()
    r = RARITY
    words = r[5] + r[6] + r[7] + r[8]
    expected = [1, (r[6] + r[8]) / words, 0, 1, 2 / 3, 0, words, math.log(5)]
    np.testing.assert_allclose(shares[0], expected, rtol=1e-6)


@pytest.mark.parametrize("empty", [[START, END], [PAD, PAD], [PAD]])
def test_empty_texts_are_finite(empty):
    for a, b in (([empty], [[START, 5, 6, END]]), ([empty], [empty])):
        for found in (*_overlap(a, b), *_overlap(b, a)):
            assert np.isfinite(found).all()
    marks, _, shares, _ = _overlap([empty], [[START, 5, 6, END]])
    assert not marks.any() and not shares.any()


def test_a_text_overlaps_fully_with_itself():
    marks, _, shares, _ = _overlap([[START, 5, 6, 7, END]], [[START, 5, 6, 7, END]])
    _, second, third = RARITY[5:8]
    words = RARITY[5:8].sum()
    # No n-gram ends at the first words, but their rarities count.
    expected = [1, (second + third) / words, third / words, 1, 1, 1, words, math.log(4)]
    np.testing.assert_allclose(shares[0], expected, rtol=1e-6)
    assert not marks[0, :, 2].any()


@settings(max_examples=15)
@given(_rows(st.integers(0, V - 1), T), _rows(st.integers(0, V - 1), S))
def test_swapped_texts_have_swapped_marks_to_the_bit(a, b):
    marks_a, marks_b, shares_a, shares_b = _overlap(a, b)
    for ours, theirs in zip(_overlap(b, a), (marks_b, marks_a, shares_b, shares_a), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    for found in (marks_a, marks_b, shares_a[:, :-2], shares_b[:, :-2]):
        assert (found >= 0).all() and (found <= 1 + 1e-6).all()
    for text, shares in ((a, shares_a), (b, shares_b)):
        words = np.array(text) >= FIRST_WORD
        assert (shares[:, -2] >= 0).all()
        assert (shares[:, -2] <= (RARITY[np.array(text)] * words).sum(axis=1) + 1e-5).all()
        np.testing.assert_allclose(shares[:, -1], np.log(1 + words.sum(axis=1)), rtol=1e-6)


@settings(max_examples=15)
@given(st.lists(st.lists(st.integers(1, V - 1), max_size=T), max_size=7), st.integers(1, 4))
def test_rarities_equal_a_python_count(texts, batch_size):
    layer = _layer()
    padded = [[*text, *[PAD] * (T - len(text))] for text in texts]
    batches = [np.array(padded[i : i + batch_size]) for i in range(0, len(padded), batch_size)]
    layer.adapt(batches)
    counts = Counter(token for text in texts for token in set(text))
    for token in range(1, V):
        expected = math.log((len(texts) + 1) / (counts[token] + 0.5)) / math.log((len(texts) + 1) / 0.5)
        assert to_numpy(layer.rarity)[token] == pytest.approx(max(expected, 0), abs=1e-6)


def test_batches_of_several_widths_are_counted_together():
    layer = _layer()
    layer.adapt([np.array([[5, 6, 7, 0]]), np.array([[5], [8]])])
    once, twice, never = (math.log(4 / (n + 0.5)) / math.log(8) for n in (1, 2, 0))
    np.testing.assert_allclose(
        to_numpy(layer.rarity)[[5, 6, 7, 8, 9]], [twice, once, once, once, never], rtol=1e-6
    )


def test_rarities_are_saved_and_not_trained(tmp_path):
    layer = TokenOverlap(V, FIRST_WORD)
    symbols = [keras.Input((length,), dtype="int32") for length in (T, S, T, S)]
    model = keras.Model(symbols, layer(*symbols)[2])
    np.testing.assert_array_equal(to_numpy(layer.rarity), np.ones(V))
    layer.adapt([np.array([[5, 6, 7, 0, 0], [5, 6, 0, 0, 0]])])
    assert not layer.trainable_weights and np.ptp(to_numpy(layer.rarity)) > 0.1
    model.save(tmp_path / "overlap.keras")
    again = keras.saving.load_model(tmp_path / "overlap.keras", safe_mode=True)
    np.testing.assert_array_equal(to_numpy(again.weights[0]), to_numpy(layer.rarity))


def test_block_sizes_have_the_fewest_padding():
    marks_a, _, shares_a, _ = _overlap([[5, 6]], [[6, 7]])
    assert marks_a.shape == (1, 2, MARKS) and shares_a.shape == (1, SHARES)
