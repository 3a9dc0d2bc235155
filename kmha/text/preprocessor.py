"""Strings to features. One object runs in the training pipeline, in `predict` and in every exported model."""

import numpy as np
import tensorflow as tf

from kmha.errors import InputError
from kmha.features import PADDING_MASK, SEGMENT_IDS, TOKEN_IDS, TextInputs
from kmha.text.tokenizers import tokenizer
from kmha.text.vocabulary import (
    END,
    PADDING,
    START,
    TOKENIZATIONS,
    UNKNOWN,
    Tokenization,
    Vocabulary,
)

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
        """Token ids without special tokens, from the first `max_bytes` bytes of each text.

        Args:
            texts: string [B]; invalid UTF-8 is replaced.
            valid_utf8: Whether all texts are known to be valid UTF-8: the same ids in about half the time.

        Returns:
            Ragged int32 [B, None], not truncated to max_length; empty rows for texts without tokens.
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
        """Token ids and padding mask, int32 [B, T], by name.

        Args:
            sequences: Ragged int32 [B, None], at most max_length long.
            ids_name: Name of the token ids.
            mask_name: Name of the mask.
            length: T; None: the longest sequence of the batch.
        """
        token_ids = sequences.to_tensor(self.padding_id, shape=(None, length))
        mask = tf.sequence_mask(sequences.row_lengths(), tf.shape(token_ids)[1], dtype=tf.int32)
        return {ids_name: token_ids, mask_name: mask}

    def pad(self, sequences, lengths=None) -> dict:
        """Features of an `encode` result: token_ids, segment_ids, padding_mask, int32 [B, T].

        Args:
            sequences: One ragged int32 [B, None], at most max_length long.
            lengths: One T; None: the longest sequence of the batch.
        """
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
    """Lengths of the pieces of texts that are split after every `max_length` tokens.

    Args:
        lengths: Tokens of each text, integers [R].
        max_length: Maximum tokens of a piece.

    Returns:
        Tokens of each piece, int64 [P], none of them 0, and the number of pieces of each text, int64 [R].
    """
    lengths = np.asarray(lengths, np.int64)
    counts = -(-lengths // max_length)
    pieces = np.full(int(counts.sum()), max_length, np.int64)
    not_empty = counts > 0
    pieces[np.cumsum(counts)[not_empty] - 1] = (lengths - max_length * (counts - 1))[not_empty]
    return pieces, counts
