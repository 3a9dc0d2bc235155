"""Trigrams of characters: those of whole words, however the words are split into tokens."""

import numpy as np
import pytest

from kmha.layers.trigrams import BUCKETS, MOST_INSIDE, TokenTrigrams, Trigrams
from tests.layer_checks import compiled, to_numpy

# Ids 0 and 1 are no tokens.
TOKENS = [
    "[PAD]",
    "[UNK]",
    "north",
    "##ern",
    "nor",
    "##thern",
    "bread",
    "##s",
    "a",
    "##bcdefghijklmnop",
    "Bread",
]
CONTINUES = [token.startswith("##") for token in TOKENS]


@pytest.fixture(scope="module")
def layer() -> Trigrams:
    tables = TokenTrigrams.of([token.removeprefix("##") for token in TOKENS])
    layer = Trigrams(len(TOKENS), tables.inside.shape[1])
    layer.build((None, None))
    layer.assign(tables)
    return layer


def found_in(layer: Trigrams, *texts: str) -> np.ndarray:
    rows = [[TOKENS.index(token) for token in text.split()] for text in texts]
    ids = np.array([row + [0] * (max(map(len, rows)) - len(row)) for row in rows], np.int32)
    return to_numpy(layer(ids, (ids > 1).astype(np.int32), np.array(CONTINUES, np.int32)[ids]))


def expected(*words: str) -> np.ndarray:
    """The buckets of the trigrams of words with a boundary on both sides."""
    found = np.zeros(BUCKETS)
    for word in words:
        codes = [ord(character) for character in f"#{word}#"]
        for a, b, c in zip(codes, codes[1:], codes[2:], strict=False):
            found[(a * 1187 + b * 59 + c) % BUCKETS] = 1
    return found


def test_trigrams_are_those_of_the_word_however_it_is_split(layer):
    found = found_in(layer, "north ##ern bread", "nor ##thern bread", "bread ##s")
    np.testing.assert_array_equal(found[0], expected("northern", "bread"))
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], expected("breads"))


def test_order_repeated_words_case_and_ids_that_are_no_tokens_do_not_count(layer):
    found = found_in(layer, "bread north", "[UNK] north bread bread", "north Bread", "[UNK]")
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], found[0])
    assert not found[3].any()


def test_tokens_of_one_character_and_long_ones(layer):
    found = found_in(layer, "a", "a ##s", "a ##bcdefghijklmnop")
    np.testing.assert_array_equal(found[:2], [expected("a"), expected("as")])
    # Of the trigrams inside a long token, only the first count.
    missing = len("bcdefghijklmnop") - 2 - MOST_INSIDE
    assert missing > 0 and (expected("abcdefghijklmnop") - found[2]).sum() == missing


def test_compiled(layer):
    ids = np.array([[2, 3, 6, 0], [8, 9, 1, 6]], np.int32)
    inputs = ids, (ids > 1).astype(np.int32), np.array(CONTINUES, np.int32)[ids]
    for function in compiled(layer).values():
        np.testing.assert_array_equal(to_numpy(function(*inputs)), to_numpy(layer(*inputs)))
