"""Three in-graph tokenizations: WordPiece, words, characters.

WordPiece gives the same ids as BERT's reference and the `tokenizers` library, except for characters that
tensorflow-text normalizes differently:

- Lower-casing is Unicode's compatibility case folding: full-width letters and punctuation, ligatures,
  superscripts and "…" become plain characters, "ß" becomes "ss"; the reference keeps them.
- Control characters separate words, and so do format characters (zero-width space, soft hyphen) if case is kept;
  the reference removes them. U+FFFD and private-use characters stay; the reference removes them.
- Special tokens in a text are plain text; the `tokenizers` library parses them as special tokens.
- White space that is a token of the vocabulary becomes that token; the reference drops white space.
- Characters that are newer than the library's Unicode tables are not punctuation and keep their accents.
"""

from collections.abc import Callable

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from kmha.errors import InputError
from kmha.text.vocabulary import CONTINUATION, LONGEST_WORD_BYTES, UNKNOWN, Tokenization, Vocabulary

# A regular expression; in character tokenization a run of white space is one space.
WHITE_SPACE = r"[\s\p{Z}]+"


def normalizer(lower_case: bool) -> Callable:
    """The normalization before every tokenization: a function from string [B] (valid UTF-8) to string [B].

    Args:
        lower_case: Whether to lower-case and strip accents.
    """
    return tf_text.FastBertNormalizer(lower_case_nfd_strip_accents=lower_case).normalize


def tokenizer(vocabulary: Vocabulary, tokenization: Tokenization, lower_case: bool) -> Callable:
    """A tokenizer: a function from string [B] (valid UTF-8) to ragged int32 [B, None], without special tokens.

    Args:
        vocabulary: Tokens and their ids.
        tokenization: "wordpiece", "word" or "char".
        lower_case: Whether to lower-case and strip accents first.

    Raises:
        InputError: A token is too long for the library.
    """
    if tokenization == "char":
        return _characters(vocabulary, lower_case)
    if tokenization == "word":
        # Without continuation pieces WordPiece matches whole words only.
        tokens = [token if not token.startswith(CONTINUATION) else f" {token}" for token in vocabulary.tokens]
    else:
        tokens = list(vocabulary.tokens)
    try:
        return tf_text.FastBertTokenizer(
            vocab=tokens,
            suffix_indicator=CONTINUATION,
            max_bytes_per_word=LONGEST_WORD_BYTES,
            token_out_type=tf.int32,
            unknown_token=UNKNOWN,
            lower_case_nfd_strip_accents=lower_case,
        ).tokenize
    except RuntimeError as error:
        raise InputError(f"vocabulary: cannot be used for {tokenization}: {error}") from error


def _characters(vocabulary: Vocabulary, lower_case: bool) -> Callable:
    """One token for each character; a run of white space is one space, leading and trailing ones are removed."""
    unknown = vocabulary.id_of(UNKNOWN)
    singles = {ord(token): index for token, index in vocabulary.ids.items() if len(token) == 1}
    # The last entry is for all code points above the largest known one.
    ids_by_code_point = np.full(max(singles, default=0) + 2, unknown, "int32")
    for code_point, index in singles.items():
        ids_by_code_point[code_point] = index
    normalize = normalizer(lower_case)

    def tokenize(texts):
        clean = tf.strings.strip(tf.strings.regex_replace(normalize(texts), WHITE_SPACE, " "))
        code_points = tf.strings.unicode_decode(clean, "UTF-8", errors="replace")
        known = tf.minimum(code_points.flat_values, len(ids_by_code_point) - 1)
        return code_points.with_flat_values(tf.gather(tf.constant(ids_by_code_point), known))

    return tokenize
