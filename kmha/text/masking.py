"""BERT's random masking of tokens for masked language modeling, in the graph."""

import math
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from kmha.errors import InputError
from kmha.features import MASK_POSITIONS, PADDING_MASK, TOKEN_IDS
from kmha.text.vocabulary import CONTINUATION, MASK, SPECIAL_TOKENS, Tokenization, Vocabulary

# Target of an empty slot.
NO_TOKEN = -1
# Shares of the masked tokens that become [MASK] and a random token; the rest is unchanged.
MASKED, REPLACED = 0.8, 0.1
# Whole-word masking may exceed the share by a part of one word: this many more slots.
WORD_MARGIN = 8
# Streams of independent random numbers.
_ORDER, _LAST, _KIND, _TOKEN = 1, 2, 3, 4
_NEVER = np.int32(2**31 - 1)
# Kinds of tokens.
_SPECIAL, _FIRST, _CONTINUING = 0, 1, 2


class MaskedRows(NamedTuple):
    """Rows with masked tokens."""

    # token_ids and padding_mask int32 [B, T]; mask_positions int32 [B, M], ascending, then 0.
    features: dict[str, tf.Tensor]
    targets: tf.Tensor  # int32 [B, M], the original ids at these positions; -1 in empty slots


class Masker(tf.Module):
    """Masks a share of each row's tokens: 80 % of them become [MASK], 10 % a random token, 10 % are unchanged.

    Special tokens ([UNK] included) and padding are neither masked nor used as random tokens. A row with n maskable
    tokens has `share` · n masked ones, rounded up or down at random so that the mean is exact, and at least one. The
    selection depends on the row's seed and tokens only, not on padding or other rows.

    Args:
        vocabulary: Tokens and their ids.
        tokenization: In "wordpiece" a token that starts with ## continues the word before it.
        share: Share of the tokens to mask, in (0, 1).
        whole_word: Whether all tokens of a word are masked together.

    Raises:
        InputError: The share is out of range, or the vocabulary has only special tokens.
    Source: Devlin et al. 2019, §3.1, arXiv:1810.04805.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        tokenization: Tokenization = "wordpiece",
        share: float = 0.15,
        whole_word: bool = False,
    ):
        super().__init__(name="masker")
        if not 0 < share < 1:
            raise InputError(f"share must be above 0 and below 1, got {share}")
        self.share, self.whole_word = share, whole_word
        self.mask_id = vocabulary.id_of(MASK)
        continues = tokenization == "wordpiece"
        self._kinds = np.full(len(vocabulary), _FIRST, np.int32)
        for index, token in enumerate(vocabulary.tokens):
            if token in SPECIAL_TOKENS:
                self._kinds[index] = _SPECIAL
            elif continues and token.startswith(CONTINUATION) and len(token) > len(CONTINUATION):
                self._kinds[index] = _CONTINUING
        self._ordinary = np.flatnonzero(self._kinds != _SPECIAL).astype(np.int32)
        if not len(self._ordinary):
            raise InputError("vocabulary: expected a token that is not special, got none")

    def slots(self, length: int) -> int:
        """M: the maximum number of masked tokens of a row of T tokens."""
        margin = WORD_MARGIN if self.whole_word else 0
        return min(length, max(1, math.ceil(self.share * length)) + margin)

    def __call__(self, token_ids, padding_mask, seeds, slots: int | tf.Tensor) -> MaskedRows:
        """Masks tokens, ids and mask int32 [B, T]; the same seed, int32 [B], masks the same tokens of a row.

        M is from the method `slots`; with fewer slots, whole words that do not fit are not masked.
        """
        given = (token_ids, padding_mask, seeds)
        token_ids, padding_mask, seeds = (tf.convert_to_tensor(each, tf.int32) for each in given)
        positions, count = self._select(token_ids, padding_mask, seeds, slots)
        is_used = tf.range(slots)[None] < count[:, None]
        true_ids = tf.gather(token_ids, positions, batch_dims=1)
        replaced = self._replacements(true_ids, positions, seeds)
        length = tf.shape(token_ids)[1]
        # Empty slots write to an extra column that is removed.
        places = tf.where(is_used, positions, length)
        rows = tf.broadcast_to(tf.range(tf.shape(places)[0])[:, None], tf.shape(places))
        wider = tf.pad(token_ids, [[0, 0], [0, 1]])
        masked = tf.tensor_scatter_nd_update(wider, tf.stack([rows, places], axis=-1), replaced)[:, :length]
        features = {TOKEN_IDS: masked, PADDING_MASK: padding_mask}
        features[MASK_POSITIONS] = tf.where(is_used, positions, 0)
        return MaskedRows(features, tf.where(is_used, true_ids, NO_TOKEN))

    def _select(self, token_ids, padding_mask, seeds, slots):
        """Positions to mask, int32 [B, M], ascending and then padded, and their number, int32 [B]."""
        kinds = tf.gather(tf.constant(self._kinds), token_ids)
        maskable = tf.logical_and(padding_mask > 0, kinds != _SPECIAL)
        starts = maskable
        if self.whole_word:
            before = tf.pad(maskable[:, :-1], [[0, 0], [1, 0]])
            # A continuation without a word before it, at the start of a piece of a long text, is a word.
            starts = tf.logical_and(maskable, tf.logical_or(kinds == _FIRST, tf.logical_not(before)))
        words = tf.cumsum(tf.cast(starts, tf.int32), axis=1)
        # Sorts words in random order: their tokens have the same key, and a stable sort keeps them together.
        keys = tf.where(maskable, tf.minimum(_noise(seeds, words, _ORDER), _NEVER - 1), _NEVER)
        order = tf.argsort(keys, axis=1, stable=True)
        keys = tf.gather(keys, order, batch_dims=1)
        order, heads = order[:, :slots], keys[:, :slots]
        first = tf.searchsorted(keys, heads, side="left")
        end = tf.searchsorted(keys, heads, side="right")
        available = tf.reduce_sum(tf.cast(maskable, tf.float32), axis=1, keepdims=True)
        expected = tf.maximum(self.share * available, 1.0)
        # The last word is selected with the probability that makes the mean exact.
        drawn = _noise(seeds, tf.zeros_like(seeds)[:, None], _LAST)
        border = tf.cast(first, tf.float32) + _fraction(drawn) * tf.cast(end - first, tf.float32)
        chosen = tf.logical_and(heads < _NEVER, tf.logical_or(first == 0, border < expected))
        chosen = tf.logical_and(chosen, end <= slots)
        length = tf.shape(token_ids)[1]
        ascending = tf.sort(tf.where(chosen, order, length), axis=1)
        return tf.minimum(ascending, length - 1), tf.reduce_sum(tf.cast(chosen, tf.int32), axis=1)

    def _replacements(self, true_ids, positions, seeds):
        """The ids at the masked positions, int32 [B, M]."""
        kind = _fraction(_noise(seeds, positions, _KIND))
        index = _noise(seeds, positions, _TOKEN) % len(self._ordinary)
        other = tf.gather(tf.constant(self._ordinary), index)
        unmasked = tf.where(kind < MASKED + REPLACED, other, true_ids)
        return tf.where(kind < MASKED, self.mask_id, unmasked)


def _noise(seeds, places, stream: int):
    """A random number for each place of each row, int32 [B, T] in [0, 2**31), from seeds [B] and places [B, T].

    TensorFlow's stateless generator draws for a whole batch: a row's numbers would depend on padding and other rows.
    """
    rows = _mix_bits(tf.bitcast(seeds, tf.uint32) + _uint32(stream * 0x9E3779B9))
    mixed = _mix_bits(tf.bitcast(places, tf.uint32) * _uint32(0x9E3779B1) + rows[:, None])
    mixed = _mix_bits(tf.bitwise.bitwise_xor(mixed, rows[:, None]))
    return tf.bitcast(tf.bitwise.right_shift(mixed, _uint32(1)), tf.int32)


def _fraction(drawn):
    """Random numbers float32 in [0, 1) from those of `_noise`."""
    return tf.cast(tf.bitwise.right_shift(drawn, 7), tf.float32) / 2.0**24


def _mix_bits(values):
    """A bijective mix of 32 bits, uint32 of any shape.

    Source: the finalizer of MurmurHash3, Appleby 2011, in the public domain.
    """
    for multiplier, shift in ((0x85EBCA6B, 16), (0xC2B2AE35, 13)):
        values = tf.bitwise.bitwise_xor(values, tf.bitwise.right_shift(values, _uint32(shift)))
        values = values * _uint32(multiplier)
    return tf.bitwise.bitwise_xor(values, tf.bitwise.right_shift(values, _uint32(16)))


def _uint32(value: int):
    return tf.constant(value % 2**32, tf.uint32)
