"""A vocabulary without what texts lack: of a small model the embedding is most of its weights."""

import itertools
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from kmha.text.tokenizers import normalizer, tokenizer
from kmha.text.vocabulary import CHUNK_ROWS, CONTINUATION, SPECIAL_TOKENS, Tokenization, Vocabulary


class Pruned(NamedTuple):
    """What is left of a vocabulary.

    Attributes:
        vocabulary: Its tokens, in the order that they had.
        kept: The old id of each new one, int64 [V], ascending: `table[kept]` are the rows of an embedding table.
    """

    vocabulary: Vocabulary
    kept: np.ndarray


def prune_vocabulary(
    vocabulary: Vocabulary,
    texts: Iterable[str],
    tokenization: Tokenization = "wordpiece",
    lower_case: bool = True,
) -> Pruned:
    """Leaves out the tokens that texts do not need.

    Kept are the special tokens, every token that a text is cut into, and of each character in the texts the token that
    it is by itself and the one that continues a word, so that new words can still be spelt. The texts are cut exactly
    as before.

    Args:
        vocabulary: The whole one.
        texts: Strings; they are read once.
        tokenization: "wordpiece", "char" or "word".
        lower_case: Whether texts are lower-cased and stripped of accents first.

    Raises:
        InputError: A token is longer than the tokenizer can take.
    """
    cut, normalize = tokenizer(vocabulary, tokenization, lower_case), normalizer(lower_case)
    needed = np.zeros(len(vocabulary), bool)
    needed[[vocabulary.id_of(token) for token in SPECIAL_TOKENS]] = True
    characters: set[str] = set()
    remaining = iter(texts)
    while chunk := [text.encode("utf-8", "replace") for text in itertools.islice(remaining, CHUNK_ROWS)]:
        strings = tf.constant(chunk)
        needed[cut(strings).flat_values.numpy()] = True
        characters.update(*(text.decode("utf-8") for text in normalize(strings).numpy()))
    alone = (form for character in characters for form in (character, CONTINUATION + character))
    needed[[vocabulary.ids[token] for token in alone if token in vocabulary.ids]] = True
    kept = np.flatnonzero(needed)
    return Pruned(Vocabulary([vocabulary.tokens[index] for index in kept]), kept)
