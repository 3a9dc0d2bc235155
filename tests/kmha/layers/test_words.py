"""Features of a word's characters."""

import keras
import numpy as np
import pytest
from keras import ops

from kmha.layers.words import (
    CAPITALS,
    LocalContext,
    SpellingEncoder,
    affix_buckets,
    lower_case,
    shape_bucket,
    whole_bucket,
)

BUCKETS = 32_771
WORDS = [
    "Anna",
    "anna",
    "Bo",
    "McDonald",
    "ANNA",
    "42",
    "7",
    "a-b",
    "x-y",
    "-",
    "",
    "naan",
    "Éva",
    "éva",
    "Юля",
    "юля",
]


def ids_of(words, length=10):
    ids = np.zeros((len(words), length), "int32")
    for row, word in enumerate(words):
        ids[row, : len(word)] = [1 + ord(character) for character in word]
    return ids


def found(function, words, *arguments):
    return ops.convert_to_numpy(function(ids_of(words), *arguments)).tolist()


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


def test_affix_buckets_depend_on_characters_and_side():
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
    # "going" and "ring" share suffixes of up to three characters.
    assert [int((each == end[0]).sum()) for each in end] == [4, 3, 0, 0, 0, 0]
    assert not set(begin[3]) & set(end[3])
    wider = ops.convert_to_numpy(affix_buckets(np.pad(ids, ((0, 0), (0, 5))), 32_749))
    np.testing.assert_array_equal(wider, found)


def test_lower_case_equals_python():
    points = range(1, 1279)  # where the table of capitals ends, and a bit
    ids = np.array([[1 + point] for point in points], "int32")
    low = ops.convert_to_numpy(lower_case(ids))[:, 0] - 1
    listed = {point for first, last, _ in CAPITALS for point in range(first, last + 1)}
    for point, mine in zip(points, low.tolist(), strict=True):
        # 930 is unassigned; the case of other alphabets is retained.
        assert mine == (
            ord(chr(point).lower()) if point in listed - {930} else mine if point == 930 else point
        )


def test_words_that_differ_by_case_alone_are_one():
    whole = found(lambda ids: whole_bucket(lower_case(ids), BUCKETS), WORDS)
    same = {word: bucket for word, bucket in zip(WORDS, whole, strict=True)}
    assert (
        same["Anna"] == same["anna"] == same["ANNA"]
        and same["Éva"] == same["éva"]
        and same["Юля"] == same["юля"]
    )
    different = {word.lower() for word in WORDS}
    assert len(set(whole)) == len(different) and min(whole) >= 0 and max(whole) < BUCKETS


@pytest.mark.parametrize(
    "alike",
    [
        ("Anna", "Bo", "Éva", "Юля"),
        ("anna", "naan", "éva", "x"),
        ("42", "7", "2026"),
        ("a-b", "xx-y"),
        ("ANNA", "X"),
    ],
)
def test_words_of_one_shape_share_a_bucket(alike):
    shapes = dict(zip(WORDS, found(shape_bucket, WORDS, BUCKETS), strict=True))
    buckets = set(found(shape_bucket, alike, BUCKETS))
    assert len(buckets) == 1
    others = [word for word in WORDS if shapes[word] not in buckets]
    # Eight shapes: Xx, x, XxXx, X, d, x-x, - and none.
    assert len({shapes[word] for word in others}) == 7


def test_long_words_of_any_characters_do_not_overflow():
    ids = np.where(np.arange(64) % 2, 4095, 4094).astype("int32")[None]
    for function in (whole_bucket, shape_bucket):
        assert 0 <= ops.convert_to_numpy(function(ids, BUCKETS))[0] < BUCKETS
    places = np.arange(64, dtype="int64")
    weights = (places * places * 613 + places * 1297 + 4801) % 8191
    assert ops.convert_to_numpy(whole_bucket(ids, BUCKETS))[0] == (ids[0] * weights).sum() % BUCKETS


def test_features_are_dropped_in_training_only():
    layer = SpellingEncoder(2000, 6)
    layer.build((None, None, None))
    table = layer.features.embeddings
    table.assign(np.random.default_rng(0).normal(size=table.shape))
    ids = ids_of(["Anna", "going"])[None]
    first, again = (ops.convert_to_numpy(layer(ids, training=False)) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    in_training = np.stack([ops.convert_to_numpy(layer(ids, training=True)) for _ in range(4)])
    assert np.abs(in_training - in_training[0]).max() > 0.1


def test_without_dropout_training_drops_no_features_either():
    layer = SpellingEncoder(2000, 6, dropout=0.0)
    layer.build((None, None, None))
    layer.features.embeddings.assign(np.random.default_rng(0).normal(size=layer.features.embeddings.shape))
    ids = ids_of(["Anna", "going"])[None]
    np.testing.assert_array_equal(layer(ids, training=True), layer(ids, training=False))


@pytest.mark.parametrize("width", [1, 3, 5])
def test_the_convolution_uses_adjacent_positions_and_no_padding(width):
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
def test_an_even_width_is_rejected(width):
    with pytest.raises(ValueError, match=f"an odd number of at least 1, got {width}"):
        LocalContext(width)
