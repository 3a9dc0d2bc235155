"""Sentences for tiny taggers, and the bundles' predictions."""

import functools
from collections.abc import Sequence

import numpy as np
import pytest

from export.device.sentences import SentenceTokenizer
from export.device.tags import TagDecoder
from export.predictors.token_batches import read_tokenizer, sentence_windows, window_inputs
from kmha.bundle.bundle import Bundle
from tests.artifact_store import ExportedFiles
from tests.bundles import SENTENCES, TAGGERS, tagger_bundle
from tests.stages import with_stages

WORDS = [sentence.split() for sentence in SENTENCES]
# Unusual words, sentences without words, and sentences of several windows of 24 tokens.
EDGE_CASE_WORDS = [
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
ROWS = [*WORDS, *EDGE_CASE_WORDS]
KINDS = tuple(TAGGERS)
# With spelling, context and linear path; the others are in the second stage.
FIRST = ("spelt",)
every_kind = pytest.mark.parametrize("kind", with_stages(KINDS, FIRST))
TEXTS = ["The old ferry, isn't it?", "渡轮七点离开旧港口。", "", "New Bread Street " * 20, b"caf\xe9 \xff"]


@functools.cache
def predictions_of(kind: str) -> np.ndarray:
    """The bundle's predictions for ROWS, float32 [N, K + 2], as a predictor returns them."""
    return predictions_for(tagger_bundle(kind), ROWS)


def written_by(main, suffix: str, flags: Sequence[Sequence[str]]) -> ExportedFiles:
    """A file of each kind of tagger, with attention.

    Args:
        main: The command of the export.
        suffix: Of the files.
        flags: More flags of each kind.
    """
    more = dict(zip(KINDS, flags, strict=True))
    return ExportedFiles("taggers", suffix, tagger_bundle, main, lambda kind: ("--attention", *more[kind]))


def predictions_for(bundle: Bundle, rows) -> np.ndarray:
    """A bundle's predictions for sentences, raw texts or lists of words, as a predictor returns them."""
    assert bundle.tagger is not None
    return as_rows(bundle.tagger.tag(bundle.tagger.split(rows).words))


def as_rows(tagged) -> np.ndarray:
    """The columns of a predictor's result."""
    return np.column_stack([tagged.probabilities, tagged.path_probabilities, tagged.tag_ids])


def check_nearly(found: np.ndarray, expected: np.ndarray, tolerance: float = 1e-4) -> None:
    """Checks a predictor's result: the same tags, and probabilities within the tolerance."""
    assert found.dtype == np.float32 and found.shape == expected.shape
    np.testing.assert_array_equal(found[:, -1], expected[:, -1])
    np.testing.assert_allclose(found, expected, atol=tolerance)


def many_tags() -> tuple[str, ...]:
    """Returns so many tags that converters quantize the table of transitions."""
    return tuple(sorted(["O", *(f"{letter}-{kind}" for kind in range(20) for letter in "BI")]))


def check_decoding(path, run, tolerance: float = 1e-5) -> None:
    """Checks that a file's tags are the best ones by its own scores, which may be rounded.

    Args:
        path: The file, with its tokenizer.json next to it.
        run: Gives its outputs by name for the inputs of one window of 24 tokens.
        tolerance: Of probabilities.
    """
    tokenizer = read_tokenizer(path)
    assert isinstance(tokenizer, SentenceTokenizer)
    decode = TagDecoder(tokenizer.transitions, tokenizer.start, tokenizer.end)
    for words in WORDS:
        for part in sentence_windows(tokenizer, words, 24):
            outputs, count = run(window_inputs(tokenizer, [part], 24, 22)), part.window.count
            probabilities, tag_ids, path_probabilities = decode(outputs["scores"][0, :count])
            np.testing.assert_array_equal(outputs["tag_ids"][0, :count], tag_ids)
            np.testing.assert_allclose(outputs["probabilities"][0, :count], probabilities, atol=tolerance)
            found = outputs["path_probabilities"][0, :count]
            np.testing.assert_allclose(found, path_probabilities, atol=tolerance)
