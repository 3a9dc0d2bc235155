"""Token dropout and the sum of embeddings."""

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from kmha.layers.embedding import (
    FINGERPRINTS,
    MULTIPLIER,
    NgramEmbedding,
    Table,
    TextEmbedding,
    TokenDropout,
    ngram_hashes,
    ngram_slots,
)
from kmha.layers.encoder_block import EncoderBlock
from kmha.layers.positions import PositionEmbedding
from tests.layer_checks import BACKEND, fill_weights, keras_mask, to_numpy

UNKNOWN, FIRST_WORD, V, D = 1, 5, 30, 4
IDS = np.random.default_rng(13).integers(0, V, (100, 200)).astype("int32")


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_token_dropout_replaces_words_at_its_rate_and_no_special_tokens(rate):
    found = to_numpy(TokenDropout(rate, UNKNOWN, FIRST_WORD)(IDS, training=True))
    words = IDS >= FIRST_WORD
    changed = found != IDS
    assert not changed[~words].any()
    assert (found[changed] == UNKNOWN).all()
    # Five standard deviations of a share among about 16,000 words.
    assert changed[words].mean() == pytest.approx(rate, abs=5 * (rate * (1 - rate) / words.sum()) ** 0.5)


def test_token_dropout_differs_between_calls():
    layer = TokenDropout(0.5, UNKNOWN, FIRST_WORD)
    first, second = (to_numpy(layer(IDS, training=True)) for _ in range(2))
    assert (first != second).any()


@pytest.mark.parametrize(("rate", "training"), [(0.5, False), (0.5, None), (0.0, True)])
def test_token_dropout_is_inactive_outside_training_and_at_rate_zero(rate, training):
    found = TokenDropout(rate, UNKNOWN, FIRST_WORD)(IDS, training=training)
    np.testing.assert_array_equal(to_numpy(found), IDS)


def _embedding(**options):
    layer = TextEmbedding(V, D, 8, **options)
    layer.build((None, None))
    fill_weights(layer)
    return layer


def test_the_embedding_is_the_sum_of_its_tables():
    layer = _embedding(num_segments=2)
    assert layer.segments is not None and layer.position is not None
    token_ids, segment_ids = IDS[:3, :6], (IDS[:3, :6] % 2).astype("int32")
    expected = (
        to_numpy(layer.tokens.embeddings)[token_ids]
        + to_numpy(layer.segments.embeddings)[segment_ids]
        + to_numpy(layer.position.table)[:6]
    )
    np.testing.assert_allclose(to_numpy(layer(token_ids, segment_ids)), expected, atol=1e-6)
    np.testing.assert_allclose(
        to_numpy(layer(token_ids)), to_numpy(layer(token_ids, np.zeros_like(segment_ids))), atol=0
    )


def test_without_segments_segment_ids_have_no_effect():
    layer = _embedding()
    np.testing.assert_array_equal(
        to_numpy(layer(IDS[:2, :5], np.ones((2, 5), "int32"))), to_numpy(layer(IDS[:2, :5]))
    )


@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
def test_a_row_with_an_offset_has_the_positions_of_the_full_row(positions):
    layer = _embedding(num_segments=2, positions=positions)
    segments = np.array([[0, 0, 0, 1, 1, 1, 1, 1]] * 2, "int32")
    whole = to_numpy(layer(IDS[:2, :8], segments))
    part = layer(IDS[:2, 3:8], segments[:, 3:], first_position=np.array([3, 3], "int32"))
    np.testing.assert_allclose(to_numpy(part), whole[:, 3:], atol=1e-6)


@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
def test_retained_tokens_have_their_original_positions(positions):
    layer = _embedding(positions=positions)
    whole, retained = to_numpy(layer(IDS[:2, :8])), np.array([[0, 2, 3, 7], [1, 4, 5, 6]])
    part = layer(np.take_along_axis(IDS[:2, :8], retained, 1), position_ids=retained.astype("int32"))
    np.testing.assert_allclose(to_numpy(part), np.take_along_axis(whole, retained[..., None], 1), atol=1e-6)


def test_without_positions_an_offset_has_no_effect():
    layer = _embedding(positions="none")
    later = layer(IDS[:2, :5], first_position=np.array([2, 90], "int32"))
    np.testing.assert_array_equal(to_numpy(later), to_numpy(layer(IDS[:2, :5])))


def test_ngrams_are_added():
    with_ngrams = _embedding(positions="none", ngram_buckets=11, ngram_dim=3)
    assert with_ngrams.ngrams is not None
    expected = to_numpy(with_ngrams.tokens(IDS[:2, :5])) + to_numpy(with_ngrams.ngrams(IDS[:2, :5]))
    np.testing.assert_allclose(to_numpy(with_ngrams(IDS[:2, :5])), expected, atol=1e-6)


def test_more_tokens_than_positions_are_rejected():
    with pytest.raises(ValueError, match="at most max_length 8, got 9"):
        TextEmbedding(V, D, 8)(IDS[:1, :9])


ROWS, WIDTH = 9, 4
TABLE_IDS = np.random.default_rng(3).integers(0, ROWS, (2, 5)).astype("int32")
# Sparse reads exist on TensorFlow only.
ON_TENSORFLOW = pytest.mark.skipif(
    BACKEND != "tensorflow", reason="other backends hand tables over as they are"
)


def _table(**options) -> Table:
    table = Table(ROWS, WIDTH, **options)
    table.build()
    fill_weights(table)
    return table


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_a_table_equals_keras_embedding(dtype):
    table = _table(dtype=dtype)
    other = keras.layers.Embedding(ROWS, WIDTH, dtype=dtype)
    other.build()
    other.set_weights(table.get_weights())
    found = table(TABLE_IDS)
    np.testing.assert_array_equal(to_numpy(found), to_numpy(other(TABLE_IDS)))
    assert keras.backend.standardize_dtype(found.dtype) == table.compute_dtype


@ON_TENSORFLOW
def test_a_lookup_never_reads_the_whole_table():
    import tensorflow as tf

    table = _table()

    @tf.function
    def gradient(ids):
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(table(ids))
        return tape.gradient(total, table.embeddings.value)

    graph = gradient.get_concrete_function(tf.TensorSpec([None, None], tf.int32)).graph
    kinds = {operation.type for operation in graph.get_operations()}
    assert "ResourceGather" in kinds and "ReadVariableOp" not in kinds


@ON_TENSORFLOW
def test_the_gradient_of_a_table_has_only_the_looked_up_rows():
    import tensorflow as tf

    table = _table()
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(table(TABLE_IDS))
    found = tape.gradient(total, table.embeddings.value)
    assert isinstance(found, tf.IndexedSlices)
    counts = np.bincount(TABLE_IDS.ravel(), minlength=ROWS).astype("float32")
    np.testing.assert_array_equal(tf.convert_to_tensor(found), np.repeat(counts[:, None], WIDTH, axis=1))


LIMIT = 2**18
LENGTH = 6


def _python_hashes(ids, order, multiplier, modulus):
    hashed = list(ids)
    for _ in range(order - 1):
        hashed = [((hashed[t - 1] if t else 0) * multiplier + ids[t]) % modulus for t in range(len(ids))]
    return hashed


def _hashes(rows, order, modulus, multiplier=MULTIPLIER):
    return to_numpy(ngram_hashes(np.asarray(rows, "int32"), order, multiplier, modulus))


@settings(max_examples=15, deadline=None)
@given(
    rows=st.lists(
        st.lists(st.integers(0, LIMIT - 1), min_size=LENGTH, max_size=LENGTH), min_size=2, max_size=2
    ),
    order=st.sampled_from([2, 3, 4]),
    modulus=st.sampled_from([7, 20_011, LIMIT - 1]),
)
def test_hashes_equal_python_integers(rows, order, modulus):
    expected = [_python_hashes(row, order, MULTIPLIER, modulus) for row in rows]
    np.testing.assert_array_equal(_hashes(rows, order, modulus), expected)


@pytest.mark.parametrize("order", [2, 3, 5])
def test_the_largest_ids_do_not_overflow(order):
    rows = [[LIMIT - 1] * LENGTH, [LIMIT - 1, 0] * (LENGTH // 2)]
    # The largest intermediate value fits in int32.
    assert (LIMIT - 1) * MULTIPLIER + LIMIT - 1 < 2**31
    for modulus in (LIMIT - 1, LIMIT - 5, 20_011):
        found = _hashes(rows, order, modulus)
        np.testing.assert_array_equal(found, [_python_hashes(r, order, MULTIPLIER, modulus) for r in rows])
        assert (found >= 0).all() and (found < modulus).all()


def test_slots_refine_buckets():
    ids = np.random.default_rng(11).integers(1, LIMIT, (4, 50)).astype("int32")
    bucket, slot = (to_numpy(x) for x in ngram_slots(ids, 2, 1009))
    np.testing.assert_array_equal(bucket, _hashes(ids, 2, 1009))
    np.testing.assert_array_equal(slot // FINGERPRINTS, bucket)
    assert len(np.unique(slot)) > len(np.unique(bucket))
    assert (slot >= 0).all() and (slot < FINGERPRINTS * 1009).all()


def _ngram_embedding(**options):
    layer = NgramEmbedding(4, 101, 3, **options)
    layer.build((None, None))
    for index, table in enumerate(layer.tables):
        table.set_weights([np.random.default_rng(index).normal(size=(101, 3))])
    return layer


def test_padding_on_the_right_does_not_change_vectors():
    ids = np.random.default_rng(12).integers(1, LIMIT, (3, 5)).astype("int32")
    padded = np.pad(ids, ((0, 0), (0, 4)))
    for order in (2, 3):
        np.testing.assert_array_equal(_hashes(padded, order, 101)[:, :5], _hashes(ids, order, 101))
    layer = _ngram_embedding()
    np.testing.assert_allclose(to_numpy(layer(padded))[:, :5], to_numpy(layer(ids)), atol=1e-6)


def test_a_vector_depends_on_the_ngram_that_ends_there():
    layer = _ngram_embedding(orders=(2,))
    vectors = to_numpy(layer(np.array([[5, 6, 7, 5, 6, 6, 5]], "int32")))[0]
    np.testing.assert_allclose(vectors[1], vectors[4], atol=1e-6)
    assert np.abs(vectors[1] - vectors[5]).max() > 1e-3
    assert np.abs(vectors[3] - vectors[6]).max() > 1e-3


def test_only_repeated_ngrams_have_vectors_after_adapt():
    layer = _ngram_embedding(orders=(2,))
    assert all((to_numpy(known) == 1).all() for known in layer.known)
    # The bigram 5 6 occurs in two texts; 7 7 twice in one text.
    texts = np.array([[5, 6, 0, 0, 0], [9, 5, 6, 0, 0], [7, 7, 7, 8, 0]], "int32")
    assert layer.adapt([texts[:2], texts[2:]]) == [1]
    vectors = to_numpy(layer(texts)) - to_numpy(layer.projection.bias)
    is_nonzero = np.abs(vectors).max(axis=-1) > 1e-4
    np.testing.assert_array_equal(is_nonzero[0][:2], [False, True])
    np.testing.assert_array_equal(is_nonzero[1][:3], [False, False, True])
    assert not is_nonzero[2].any()


def test_token_dropout_retains_the_mean_of_ngrams():
    ids = np.tile(np.array([[5, 6, 7, 8, 9]], "int32"), (4000, 1))
    layer = NgramEmbedding(4, 1009, ngram_dim=3)
    layer.build(ids.shape)
    for table in layer.tables:
        table.embeddings.assign(np.random.default_rng(1).normal(size=table.embeddings.shape))
    layer.adapt([ids[:2]])
    dropout = TokenDropout(0.4, replacement=1, first_id=5)
    dropped = dropout(ids, training=True)
    mean = to_numpy(layer(dropped, token_keep=0.6, training=True)).mean(axis=0)
    whole = to_numpy(layer(ids[:1]))[0]
    # From the third position on, n-grams do not include positions before the text.
    np.testing.assert_allclose(mean[2:], whole[2:], atol=0.15 * np.abs(whole).max())
    assert np.abs(to_numpy(layer(dropped)).mean(axis=0)[2:]).max() < 0.6 * np.abs(whole).max()


def test_the_ngram_vocabulary_mask_is_saved(tmp_path):
    ids = keras.Input((5,), dtype="int32")
    layer = NgramEmbedding(4, 101, 3)
    model = keras.Model(ids, layer(ids))
    layer.adapt([np.array([[5, 6, 7, 0, 0], [9, 5, 6, 7, 0]], "int32")])
    model.save(tmp_path / "ngrams.keras")
    again = keras.saving.load_model(tmp_path / "ngrams.keras", safe_mode=True)
    for ours, theirs in zip(layer.known, again.layers[-1].known, strict=True):
        assert 0 < ops.convert_to_numpy(ours).sum() < 101
        np.testing.assert_array_equal(ops.convert_to_numpy(ours), ops.convert_to_numpy(theirs))


@pytest.mark.parametrize("mask_zero", [True, False])
def test_embedded_padding_has_a_keras_mask(mask_zero):
    ids = np.array([[5, 6, 0], [7, 0, 0]], "int32")
    x = TextEmbedding(V, D, 3, mask_zero=mask_zero)(ids)
    for outputs in (x, PositionEmbedding(3)(x), EncoderBlock(2, 6)(x)):
        mask = keras_mask(outputs)
        if mask_zero:
            np.testing.assert_array_equal(mask, ids > 0)
        else:
            assert mask is None
