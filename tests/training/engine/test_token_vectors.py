"""Initial token embeddings from co-occurrence."""

import numpy as np
import pytest

from training.engine import token_vectors
from training.engine.token_vectors import cooccurrence_vectors

V, WIDTH = 30, 16


def _texts(rows: int = 400, seed: int = 0) -> list[np.ndarray]:
    """Each text has six tokens of 1 to 10, or six of 11 to 20, and then two of padding; token 21 occurs alone."""
    random = np.random.default_rng(seed)
    ids = random.integers(1, 11, (rows, 6)) + 10 * random.integers(0, 2, (rows, 1))
    texts = np.pad(ids, ((0, 0), (0, 2))).astype(np.int32)
    return [texts[: rows // 2], texts[rows // 2 :], np.full((1, 1), 21, np.int32)]


def _vectors(seed: int = 0, width: int = WIDTH) -> np.ndarray:
    return cooccurrence_vectors(_texts(), V, width, 2400, seed)


def test_tokens_with_the_same_neighbors_are_near():
    vectors = _vectors()
    assert vectors.shape == (V, WIDTH) and vectors.dtype == np.float32
    cosines = vectors @ vectors.T
    inside, across = cosines[1:11, 1:11].mean(), cosines[1:11, 11:21].mean()
    assert inside > 0.3 > 0.1 > across


def test_vectors_have_length_one_or_are_zeros():
    lengths = np.linalg.norm(_vectors(), axis=1)
    np.testing.assert_allclose(lengths[1:21], 1, rtol=1e-5)
    # Padding is no neighbor, and a token alone has none.
    assert not lengths[0] and not lengths[21:].any()


def test_no_dimension_has_most_of_the_variance():
    variance = _vectors().var(axis=0)
    assert variance.max() < 4 * variance.mean()


def test_the_result_depends_on_the_seed_alone():
    np.testing.assert_array_equal(_vectors(), _vectors())
    assert (_vectors() != _vectors(seed=1)).any()


@pytest.mark.parametrize("width", [4, 2 * V])
def test_any_width(width):
    vectors = _vectors(width=width)
    assert vectors.shape == (V, width) and np.isfinite(vectors).all()
    assert np.linalg.norm(vectors[1:21], axis=1) == pytest.approx(1, rel=1e-5)


def test_a_random_share_of_long_texts_is_read(monkeypatch):
    read = []
    monkeypatch.setattr(token_vectors, "MAX_TOKENS", 600)
    counts = token_vectors._positive_information
    monkeypatch.setattr(
        token_vectors, "_positive_information", lambda each: read.append(each.sum()) or counts(each)
    )
    vectors = _vectors()
    monkeypatch.setattr(token_vectors, "MAX_TOKENS", 2400)
    _vectors()
    assert 0.15 < read[0] / read[1] < 0.35
    assert vectors[1:21].any(axis=1).all()


def test_texts_of_one_token_have_no_vectors():
    assert not cooccurrence_vectors([np.ones((5, 1), np.int32)], V, WIDTH, 5, 0).any()
    assert not cooccurrence_vectors([], V, WIDTH, 0, 0).any()
