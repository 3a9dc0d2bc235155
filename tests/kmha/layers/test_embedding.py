"""Token dropout and the sum of embeddings."""

import numpy as np
import pytest

from kmha.layers.embedding import TextEmbedding, TokenDropout
from tests.layer_checks import fill_weights, to_numpy

UNKNOWN, FIRST_WORD, V, D = 1, 5, 30, 4
IDS = np.random.default_rng(13).integers(0, V, (100, 200)).astype("int32")


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_token_dropout_replaces_words_at_its_rate_and_specials_never(rate):
    found = to_numpy(TokenDropout(rate, UNKNOWN, FIRST_WORD)(IDS, training=True))
    words = IDS >= FIRST_WORD
    changed = found != IDS
    assert not changed[~words].any()
    assert (found[changed] == UNKNOWN).all()
    # Five standard deviations of a share among about 16,000 words.
    assert changed[words].mean() == pytest.approx(rate, abs=5 * (rate * (1 - rate) / words.sum()) ** 0.5)


def test_token_dropout_draws_anew_at_each_call():
    layer = TokenDropout(0.5, UNKNOWN, FIRST_WORD)
    first, second = (to_numpy(layer(IDS, training=True)) for _ in range(2))
    assert (first != second).any()


@pytest.mark.parametrize(("rate", "training"), [(0.5, False), (0.5, None), (0.0, True)])
def test_token_dropout_changes_nothing_otherwise(rate, training):
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


def test_without_positions_an_offset_has_no_effect():
    layer = _embedding(positions="none")
    later = layer(IDS[:2, :5], first_position=np.array([2, 90], "int32"))
    np.testing.assert_array_equal(to_numpy(later), to_numpy(layer(IDS[:2, :5])))


def test_ngrams_are_added():
    with_ngrams = _embedding(positions="none", ngram_buckets=11, ngram_dim=3)
    assert with_ngrams.ngrams is not None
    expected = to_numpy(with_ngrams.tokens(IDS[:2, :5])) + to_numpy(with_ngrams.ngrams(IDS[:2, :5]))
    np.testing.assert_allclose(to_numpy(with_ngrams(IDS[:2, :5])), expected, atol=1e-6)


def test_too_long_is_rejected():
    with pytest.raises(ValueError, match="at most max_length 8, got 9"):
        TextEmbedding(V, D, 8)(IDS[:1, :9])
