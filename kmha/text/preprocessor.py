"""Strings to features. One object runs in the training pipeline, in `predict` and in every exported model.

WordPiece gives the same ids as BERT's reference and the `tokenizers` library, except for characters that
tensorflow-text normalizes differently:

- Lower-casing is Unicode's compatibility case folding: full-width letters and punctuation, ligatures, superscripts and
  "…" become plain characters, "ß" becomes "ss"; the reference keeps them.
- Control characters separate words, and so do format characters (zero-width space, soft hyphen) without lower-casing;
  the reference removes them. U+FFFD and private-use characters stay; the reference removes them.
- Special tokens in a text are plain text; the `tokenizers` library parses them as special tokens.
- White space that is a token of the vocabulary becomes that token; the reference drops white space.
- Characters that are newer than the library's Unicode tables are not punctuation and keep their accents.
"""

from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from kmha.errors import InputError
from kmha.features import PADDING_MASK, SEGMENT_IDS, SIDES, TOKEN_IDS, TextInputs, input_names
from kmha.text.vocabulary import (
    CONTINUATION,
    END,
    LONGEST_WORD_BYTES,
    PADDING,
    START,
    TOKENIZATIONS,
    UNKNOWN,
    Tokenization,
    Vocabulary,
)

# A regular expression; in character tokenization a run of white space is one space.
WHITE_SPACE = r"[\s\p{Z}]+"


def normalizer(lower_case: bool) -> Callable:
    """The normalization before every tokenization: a function from string [B] (valid UTF-8) to string [B]."""
    return tf_text.FastBertNormalizer(lower_case_nfd_strip_accents=lower_case).normalize


def tokenizer(vocabulary: Vocabulary, tokenization: Tokenization, lower_case: bool) -> Callable:
    """A tokenizer: a function from string [B] (valid UTF-8) to ragged int32 [B, None], without special tokens.

    Raises InputError if a token is too long for the library.
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


# Bytes read of a text for each token of the maximum length: more than tokens need, a bound for hostile texts.
BYTES_PER_TOKEN = 64
# Maximum length of `long_text_preprocessor`: it reads 64 MiB of a text.
LONG_TEXT_TOKENS = 2**20


class Preprocessor(tf.Module):
    """Turns strings into token ids between [CLS] and [SEP], padded on the right.

    Args:
        vocabulary: Tokens and their ids.
        tokenization: "wordpiece", "char" or "word".
        lower_case: Whether to lower-case and strip accents.
        max_length: Maximum sequence length with the two special tokens.

    Raises:
        InputError: max_length is not an integer of at least 3, or the tokenization is unknown.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        tokenization: Tokenization = "wordpiece",
        lower_case: bool = True,
        max_length: int = 128,
    ):
        super().__init__(name="preprocessor")
        if not isinstance(max_length, int) or max_length < 3:
            raise InputError(f"max_length must be at least 3, got {max_length!r}")
        if tokenization not in TOKENIZATIONS:
            raise InputError(f"tokenization must be one of {', '.join(TOKENIZATIONS)}, got {tokenization!r}")
        self.vocabulary = vocabulary
        self.tokenization: Tokenization = tokenization
        self.lower_case = lower_case
        self.max_length = max_length
        self.max_bytes = BYTES_PER_TOKEN * max_length
        self._tokenizer = tokenizer(vocabulary, tokenization, lower_case)
        self.padding_id = vocabulary.id_of(PADDING)
        self.unknown_id = vocabulary.id_of(UNKNOWN)
        self.start_id, self.end_id = vocabulary.id_of(START), vocabulary.id_of(END)
        self.num_texts = 1

    @property
    def inputs(self) -> list[TextInputs]:
        """The model's inputs: token_ids and padding_mask of one text."""
        return [TextInputs(TOKEN_IDS, PADDING_MASK, 0, self)]

    def encode(self, texts, valid_utf8: bool = False) -> tuple:
        """Token ids with special tokens of texts, string [B]: a tuple of one ragged int32 [B, None]."""
        return (self.add_special_tokens(self.tokenize(texts, valid_utf8)),)

    def tokenize(self, texts, valid_utf8: bool = False):
        """Token ids without special tokens, from the first `max_bytes` bytes of each text, string [B].

        Ragged int32 [B, None], not truncated to max_length. Invalid UTF-8 is replaced; if all texts are known to be
        valid, the same ids take about half the time.
        """

        def checked():
            # After truncation, which may split a character.
            capped = tf.strings.substr(texts, 0, self.max_bytes)
            return tf.strings.unicode_transcode(capped, "UTF-8", "UTF-8", errors="replace")

        if not valid_utf8:
            return self._tokenizer(checked())
        is_short = tf.reduce_all(tf.strings.length(texts) <= self.max_bytes)
        return self._tokenizer(tf.cond(is_short, lambda: tf.identity(texts), checked))

    def add_special_tokens(self, token_ids):
        """Adds [CLS] and [SEP] to token ids, ragged int32 [B, None], truncated to max_length."""
        truncated = token_ids[:, : self.max_length - 2]
        ones = tf.ones((truncated.nrows(), 1), tf.int32)
        return tf.concat([self.start_id * ones, truncated, self.end_id * ones], axis=1)

    def pad_sequences(self, sequences, ids_name: str, mask_name: str, length: int | None = None) -> dict:
        """Token ids and padding mask int32 [B, T] of ragged sequences, by name; T None: the longest of the batch."""
        token_ids = sequences.to_tensor(self.padding_id, shape=(None, length))
        mask = tf.sequence_mask(sequences.row_lengths(), tf.shape(token_ids)[1], dtype=tf.int32)
        return {ids_name: token_ids, mask_name: mask}

    def pad(self, sequences, lengths=None) -> dict:
        """Features of an `encode` result: token_ids, segment_ids, padding_mask, int32 [B, T]; T is `lengths[0]`."""
        length = None if lengths is None else lengths[0]
        features = self.pad_sequences(sequences[0], TOKEN_IDS, PADDING_MASK, length)
        return {**features, SEGMENT_IDS: tf.zeros_like(features[TOKEN_IDS])}

    def __call__(self, texts, length: int | None = None):
        """Features int32 [B, T] of texts, string [B]."""
        return self.pad(self.encode(texts), None if length is None else (length,))

    def get_config(self) -> dict:
        """The constructor's arguments without the vocabulary, as JSON values."""
        return {
            "tokenization": self.tokenization,
            "lower_case": self.lower_case,
            "max_length": self.max_length,
        }


def long_text_preprocessor(preprocessor: Preprocessor) -> Preprocessor:
    """A preprocessor with the same tokenization that reads 64 MiB of each text."""
    return Preprocessor(
        preprocessor.vocabulary, preprocessor.tokenization, preprocessor.lower_case, LONG_TEXT_TOKENS
    )


def split_lengths(lengths: np.ndarray, max_length: int) -> tuple[np.ndarray, np.ndarray]:
    """Splits texts of `lengths` tokens, integers [R], after every `max_length` tokens.

    Returns:
        Tokens of each piece, int64 [P], none of them 0, and the number of pieces of each text, int64 [R].
    """
    lengths = np.asarray(lengths, np.int64)
    counts = -(-lengths // max_length)
    pieces = np.full(int(counts.sum()), max_length, np.int64)
    not_empty = counts > 0
    pieces[np.cumsum(counts)[not_empty] - 1] = (lengths - max_length * (counts - 1))[not_empty]
    return pieces, counts


class PairPreprocessor(tf.Module):
    """Turns two texts into token ids, for each granularity.

    Args:
        parts: A preprocessor by granularity, such as {"char": …, "wordpiece": …}, in the order of the model.

    Raises:
        InputError: `parts` is empty.
    """

    def __init__(self, parts: Mapping[str, Preprocessor]):
        super().__init__(name="pair_preprocessor")
        if not parts:
            raise InputError("granularities must be one or more, got none")
        # Lists: tf.Module would wrap and sort a dictionary.
        self.granularities = tuple(parts)
        self.parts = list(parts.values())
        self.num_texts = 2
        self.max_bytes = max(part.max_bytes for part in self.parts)
        self.inputs = [
            TextInputs(*input_names(side, name if len(self.parts) > 1 else ""), index, part)
            for name, part in zip(self.granularities, self.parts, strict=True)
            for index, side in enumerate(SIDES)
        ]

    def encode(self, texts_a, texts_b, valid_utf8: bool = False) -> tuple:
        """Token ids with special tokens of texts, string [B]: ragged int32 [B, None] for each of `inputs`."""
        return tuple(
            given.part.add_special_tokens(given.part.tokenize((texts_a, texts_b)[given.text], valid_utf8))
            for given in self.inputs
        )

    def pad(self, sequences, lengths=None) -> dict:
        """Features of an `encode` result: token_ids_a, padding_mask_a, token_ids_b, padding_mask_b, int32 [B, T].

        With several granularities there is one such set for each, with its name as prefix. T of each input is in
        `lengths`; None: the longest sequence of the batch.
        """
        features = {}
        for index, given in enumerate(self.inputs):
            length = None if lengths is None else lengths[index]
            features |= given.part.pad_sequences(sequences[index], given.ids, given.mask, length)
        return features

    def __call__(self, texts_a, texts_b, lengths=None):
        """Features int32 [B, T] of texts, string [B] each."""
        return self.pad(self.encode(texts_a, texts_b), lengths)

    def get_config(self) -> dict:
        """By granularity, the constructor's arguments of its part without the vocabulary, as JSON values."""
        return {name: part.get_config() for name, part in zip(self.granularities, self.parts, strict=True)}
