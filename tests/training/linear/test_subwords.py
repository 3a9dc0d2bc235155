"""Character n-grams of tokens, by which words of the same stem share weights."""

import numpy as np
import pytest

from kmha.text.vocabulary import SPECIAL_TOKENS
from training.linear.subwords import STRENGTH, subword_features


def _similarity(tokens: list[str]) -> np.ndarray:
    features = subword_features(tokens)
    return (features @ features.T).toarray() / STRENGTH**2


def test_words_of_the_same_stem_are_similar():
    similarity = _similarity(["garden", "gardens", "gardener", "warden", "dog", "dogs"])
    assert similarity[0, 1] > 0.5 and similarity[0, 2] > 0.5 and similarity[4, 5] > 0.5
    assert 0 < similarity[1, 3] < similarity[1, 2]
    assert similarity[0, 4] == similarity[1, 4] == 0


def test_rows_have_one_length_or_are_empty():
    features = subword_features([*SPECIAL_TOKENS, "city", "cities", "x", "y", "unlike"])
    lengths = np.sqrt(features.power(2).sum(axis=1).A1)
    np.testing.assert_allclose(lengths, [0] * len(SPECIAL_TOKENS) + [STRENGTH] * 2 + [0] * 3)
    # N-grams of only one token add no information to the token.
    assert (np.diff(features.tocsc().indptr) > 1).all()


def test_pieces_of_words_have_no_start():
    similarity = _similarity(["##ties", "cities", "ties", "dog", "title"])
    # "<ti" is an n-gram of "ties" and "title".
    assert similarity[0, 1] > similarity[0, 2] > 0
    assert similarity[2, 4] > similarity[0, 4] == 0


@pytest.mark.parametrize("tokens", [[], ["one"], ["中", "国"], list(SPECIAL_TOKENS)])
def test_tokens_without_common_ngrams_have_no_features(tokens):
    features = subword_features(tokens)
    assert features.shape[0] == len(tokens) and features.nnz == 0
