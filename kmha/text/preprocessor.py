"""Strings to features. One object serves the training pipeline, `predict` and every exported model."""

import numpy as np
import tensorflow as tf

from kmha.errors import InputError
from kmha.features import PADDING_MASK, SEGMENT_IDS, TOKEN_IDS, TextInputs
from kmha.text.tokenizers import tokenizer
from kmha.text.vocabulary import END, PADDING, START, TOKENIZATIONS, UNKNOWN, Tokenization, Vocabulary

# Bytes read of a text for each token it may keep: far more than any token needs, far less than a hostile text has.
BYTES_PER_TOKEN = 64


class Preprocessor(tf.Module):
    """Turns strings into token ids between [CLS] and [SEP], padded on the right.

    Args:
        vocabulary: Tokens and their ids.
        tokenization: "wordpiece", "char" or "word".
        lower_case: Whether to lower-case and strip accents.
        max_length: Longest sequence, the two special tokens included.

    Raises:
        InputError: max_length is no integer of at least 3, or the tokenization is not known.
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
        self._cut = tokenizer(vocabulary, tokenization, lower_case)
        self.padding_id = vocabulary.id_of(PADDING)
        self.unknown_id = vocabulary.id_of(UNKNOWN)
        self.start_id, self.end_id = vocabulary.id_of(START), vocabulary.id_of(END)
        self.num_texts = 1

    @property
    def inputs(self) -> list[TextInputs]:
        """What a model reads: token_ids and padding_mask of the one text."""
        return [TextInputs(TOKEN_IDS, PADDING_MASK, 0, self)]

    def encode(self, texts, valid_utf8: bool = False) -> tuple:
        """Token ids with special tokens: one ragged int32 [B, None], of texts, string [B]."""
        return (self.add_special_tokens(self.tokenize(texts, valid_utf8)),)

    def tokenize(self, texts, valid_utf8: bool = False):
        """Token ids without special tokens, from the first `max_bytes` bytes of each text.

        Args:
            texts: string [B]; invalid UTF-8 is read as replacement characters.
            valid_utf8: Whether the texts are known to be valid: the same ids, for about half the time.

        Returns:
            Ragged int32 [B, None], not yet cut to max_length. A text without tokens gives an empty row.
        """

        def checked():
            # After the cut, which may fall inside a character.
            capped = tf.strings.substr(texts, 0, self.max_bytes)
            return tf.strings.unicode_transcode(capped, "UTF-8", "UTF-8", errors="replace")

        if not valid_utf8:
            return self._cut(checked())
        whole = tf.reduce_all(tf.strings.length(texts) <= self.max_bytes)
        return self._cut(tf.cond(whole, lambda: tf.identity(texts), checked))

    def add_special_tokens(self, token_ids):
        """[CLS], as many tokens as fit, [SEP]: ragged int32 [B, None] from ragged int32 [B, None]."""
        kept = token_ids[:, : self.max_length - 2]
        ones = tf.ones((kept.nrows(), 1), tf.int32)
        return tf.concat([self.start_id * ones, kept, self.end_id * ones], axis=1)

    def pad_sequences(self, sequences, ids_name: str, mask_name: str, length: int | None = None) -> dict:
        """Token ids and padding mask by name.

        Args:
            sequences: Ragged int32 [B, None], none longer than max_length.
            ids_name: Name of the token ids.
            mask_name: Name of the mask.
            length: T; None pads to the longest of the batch.

        Returns:
            int32 [B, T] each.
        """
        token_ids = sequences.to_tensor(self.padding_id, shape=(None, length))
        mask = tf.sequence_mask(sequences.row_lengths(), tf.shape(token_ids)[1], dtype=tf.int32)
        return {ids_name: token_ids, mask_name: mask}

    def pad(self, sequences, lengths=None) -> dict:
        """Features of what `cut` gives.

        Args:
            sequences: One ragged int32 [B, None], none longer than max_length.
            lengths: One T; None pads to the longest of the batch.

        Returns:
            token_ids, segment_ids, padding_mask, each int32 [B, T].
        """
        features = self.pad_sequences(
            sequences[0], TOKEN_IDS, PADDING_MASK, None if lengths is None else lengths[0]
        )
        return {**features, SEGMENT_IDS: tf.zeros_like(features[TOKEN_IDS])}

    def __call__(self, texts, length: int | None = None):
        """Features int32 [B, T] of texts, string [B]."""
        return self.pad(self.encode(texts), None if length is None else (length,))

    def get_config(self) -> dict:
        """The constructor's arguments but the vocabulary, as JSON values."""
        return {
            "tokenization": self.tokenization,
            "lower_case": self.lower_case,
            "max_length": self.max_length,
        }


# A Preprocessor reads 64 bytes for each token it may keep: with so many, 64 MiB of a text.
LONG_TEXT_TOKENS = 2**20


def long_text_preprocessor(preprocessor: Preprocessor) -> Preprocessor:
    """One that cuts texts in the same way but reads 64 MiB of each."""
    return Preprocessor(
        preprocessor.vocabulary, preprocessor.tokenization, preprocessor.lower_case, LONG_TEXT_TOKENS
    )


def split_lengths(lengths: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Cuts texts into pieces of so many tokens, of each text the last one shorter.

    Args:
        lengths: Tokens of each text, integers [R].
        most: Tokens of a piece at most.

    Returns:
        Tokens of each piece, int64 [P], none of them 0, and the pieces of each text, int64 [R].
    """
    lengths = np.asarray(lengths, np.int64)
    counts = -(-lengths // most)
    pieces = np.full(int(counts.sum()), most, np.int64)
    there = counts > 0
    pieces[np.cumsum(counts)[there] - 1] = (lengths - most * (counts - 1))[there]
    return pieces, counts
