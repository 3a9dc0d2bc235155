"""Sentences to ask tiny taggers about, and their own answers."""

import functools

import numpy as np

from tests.bundles import SENTENCES, TAGGERS, tagger_bundle

WORDS = [sentence.split() for sentence in SENTENCES]
# Words that no one would call one, sentences of none, and of several windows where a window has 24 tokens.
NASTY_WORDS = [
    [],
    [""],
    ["", " ", "\0", "\u200b", "bread"],
    ["a b", "c\td", "old\nbread", "\u3000", "\u0301"],
    ["🚢🥖", "👩‍🍳", "ＦＵＬＬ", "ﬁ²", "\U0010ffff", "\ud83d"],
    ["bread" * 41, "x" * 300, "é" * 21, "b" * 20, "harbour" * 400],
    ["[CLS]", "[SEP]", "[PAD]", "##bread"],
    ["old", "new"] * 100,
    ["x" * 100_000, "bread", "港" * 100_000],
]
ROWS = [*WORDS, *NASTY_WORDS]
KINDS = tuple(TAGGERS)


@functools.cache
def answers_of(kind: str) -> np.ndarray:
    """The bundle's own answers to ROWS, float32 [N, K + 2], as a predictor gives them."""
    return as_rows(tagger_bundle(kind).tagger.tag(ROWS))


def as_rows(tagged) -> np.ndarray:
    """The columns of a predictor's answers."""
    return np.column_stack([tagged.probabilities, tagged.path_probabilities, tagged.tag_ids])
