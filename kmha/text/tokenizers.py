"""Three ways to cut strings into token ids, each in the graph: WordPiece, words, characters.

WordPiece gives the ids that the reference gives (BERT's, and the `tokenizers` library's) but for
characters that tensorflow-text normalises in another way:

- Lower-casing is Unicode's compatibility case folding: full-width letters and punctuation, ligatures,
  superscripts, "…" become plain ones, "ß" becomes "ss"; the reference keeps them.
- Control characters part words, and so do format characters (zero-width space, soft hyphen) where case
  is kept; the reference removes them. U+FFFD and private-use characters stay; the reference removes them.
- Special tokens that a text spells out are plain text; the `tokenizers` library takes them for themselves.
- White space that is a token of the vocabulary is that token; the reference never sees it.
- Characters that are newer than the library's Unicode tables are no punctuation and keep their accents.
"""

from collections.abc import Callable

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from kmha.errors import InputError
from kmha.text.vocabulary import CONTINUATION, LONGEST_WORD_BYTES, UNKNOWN, Tokenization, Vocabulary

# As a regular expression; runs of it count as one space where characters are the tokens.
WHITE_SPACE = r"[\s\p{Z}]+"


def normalizer(lower_case: bool) -> Callable:
    """The function that every tokenization applies first.

    Args:
        lower_case: Whether to lower-case and strip accents.

    Returns:
        A function from string [B] (valid UTF-8) to string [B].
    """
    return tf_text.FastBertNormalizer(lower_case_nfd_strip_accents=lower_case).normalize


def tokenizer(vocabulary: Vocabulary, tokenization: Tokenization, lower_case: bool) -> Callable:
    """The function that cuts strings.

    Args:
        vocabulary: Tokens and their ids.
        tokenization: "wordpiece", "word" or "char".
        lower_case: Whether to lower-case and strip accents first.

    Returns:
        A function from string [B] (valid UTF-8) to ragged int32 [B, None], without special tokens.

    Raises:
        InputError: A token is longer than the library can take.
    """
    if tokenization == "char":
        return _characters(vocabulary, lower_case)
    if tokenization == "word":
        # Without continuation pieces WordPiece can only take whole words.
        kept = [token if not token.startswith(CONTINUATION) else f" {token}" for token in vocabulary.tokens]
    else:
        kept = list(vocabulary.tokens)
    try:
        return tf_text.FastBertTokenizer(
            vocab=kept,
            suffix_indicator=CONTINUATION,
            max_bytes_per_word=LONGEST_WORD_BYTES,
            token_out_type=tf.int32,
            unknown_token=UNKNOWN,
            lower_case_nfd_strip_accents=lower_case,
        ).tokenize
    except RuntimeError as error:
        raise InputError(f"vocabulary: cannot be used for {tokenization}: {error}") from error


def _characters(vocabulary: Vocabulary, lower_case: bool) -> Callable:
    """One token a character; runs of white space count as one space, none at the ends."""
    unknown = vocabulary.id_of(UNKNOWN)
    singles = {ord(token): index for token, index in vocabulary.ids.items() if len(token) == 1}
    # The last entry stands for every code point past the largest one known.
    ids_by_code_point = np.full(max(singles, default=0) + 2, unknown, "int32")
    for code_point, index in singles.items():
        ids_by_code_point[code_point] = index
    normalize = normalizer(lower_case)

    def cut(texts):
        clean = tf.strings.strip(tf.strings.regex_replace(normalize(texts), WHITE_SPACE, " "))
        code_points = tf.strings.unicode_decode(clean, "UTF-8", errors="replace")
        known = tf.minimum(code_points.flat_values, len(ids_by_code_point) - 1)
        return code_points.with_flat_values(tf.gather(tf.constant(ids_by_code_point), known))

    return cut
