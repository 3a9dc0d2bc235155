"""Three ways to cut strings into token ids, each in the graph: WordPiece, words, characters."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from kmha.text.special_tokens import UNKNOWN
from kmha.text.vocabulary import CONTINUATION, Tokenization, Vocabulary

# A run of letters longer than this is one unknown token, as in BERT.
LONGEST_WORD_BYTES = 200


def tokenizer(vocabulary: Vocabulary, tokenization: Tokenization, lower_case: bool) -> Callable:
    """The function that cuts strings.

    Args:
        vocabulary: Tokens and their ids.
        tokenization: "wordpiece", "word" or "char".
        lower_case: Whether to lower-case and strip accents first.

    Returns:
        A function from string [B] (valid UTF-8) to ragged int32 [B, None], without special tokens.
    """
    if tokenization == "char":
        return _characters(vocabulary, lower_case)
    if tokenization == "word":
        # Without continuation pieces WordPiece can only take whole words.
        kept = [token if not token.startswith(CONTINUATION) else f" {token}" for token in vocabulary.tokens]
    else:
        kept = list(vocabulary.tokens)
    cut = tf_text.FastBertTokenizer(
        vocab=kept,
        suffix_indicator=CONTINUATION,
        max_bytes_per_word=LONGEST_WORD_BYTES,
        token_out_type=tf.int32,
        unknown_token=UNKNOWN,
        lower_case_nfd_strip_accents=lower_case,
    )
    return cut.tokenize


def _characters(vocabulary: Vocabulary, lower_case: bool) -> Callable:
    """One token a character; runs of white space count as one space, none at the ends."""
    unknown = vocabulary.id_of(UNKNOWN)
    singles = {ord(token): index for token, index in vocabulary.ids.items() if len(token) == 1}
    # The last entry stands for every code point past the largest one known.
    ids_by_code_point = np.full(max(singles, default=0) + 2, unknown, "int32")
    for code_point, index in singles.items():
        ids_by_code_point[code_point] = index
    normalizer = tf_text.FastBertNormalizer(lower_case_nfd_strip_accents=lower_case)

    def cut(texts):
        clean = normalizer.normalize(texts)
        clean = tf.strings.strip(tf.strings.regex_replace(clean, r"\s+", " "))
        code_points = tf.strings.unicode_decode(clean, "UTF-8", errors="replace")
        known = tf.minimum(code_points.flat_values, len(ids_by_code_point) - 1)
        return code_points.with_flat_values(tf.gather(tf.constant(ids_by_code_point), known))

    return cut
