"""Removes unused tokens from a vocabulary; the embedding table holds most weights of a small model."""

import itertools
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from kmha.text.tokenizers import normalizer, tokenizer
from kmha.text.vocabulary import CHUNK_ROWS, CONTINUATION, SPECIAL_TOKENS, Tokenization, Vocabulary


class PrunedVocabulary(NamedTuple):
    """A pruned vocabulary.

    Attributes:
        vocabulary: The remaining tokens in their previous order.
        kept_ids: Previous id of each token, int64 [V], ascending: `table[kept_ids]` are the rows of an embedding table.
    """

    vocabulary: Vocabulary
    kept_ids: np.ndarray


def prune_vocabulary(
    vocabulary: Vocabulary,
    texts: Iterable[str],
    tokenization: Tokenization = "wordpiece",
    lower_case: bool = True,
) -> PrunedVocabulary:
    """Removes the tokens that the texts do not use; the texts are tokenized exactly as before.

    Keeps the special tokens, every token of the texts, and for each character of the texts its own token and its
    continuation token, so that new words can be spelled.

    Args:
        vocabulary: The full vocabulary.
        texts: Strings; read once.
        tokenization: "wordpiece", "char" or "word".
        lower_case: Whether texts are lower-cased and stripped of accents first.

    Raises:
        InputError: A token is too long for the tokenizer.
    """
    tokenize, normalize = tokenizer(vocabulary, tokenization, lower_case), normalizer(lower_case)
    is_used = np.zeros(len(vocabulary), bool)
    is_used[[vocabulary.id_of(token) for token in SPECIAL_TOKENS]] = True
    characters: set[str] = set()
    remaining = iter(texts)
    while chunk := [text.encode("utf-8", "replace") for text in itertools.islice(remaining, CHUNK_ROWS)]:
        strings = tf.constant(chunk)
        is_used[tokenize(strings).flat_values.numpy()] = True
        characters.update(*(text.decode("utf-8") for text in normalize(strings).numpy()))
    single = (form for character in characters for form in (character, CONTINUATION + character))
    is_used[[vocabulary.ids[token] for token in single if token in vocabulary.ids]] = True
    kept_ids = np.flatnonzero(is_used)
    return PrunedVocabulary(Vocabulary([vocabulary.tokens[index] for index in kept_ids]), kept_ids)
