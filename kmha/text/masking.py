"""Which tokens of a text a model must find, and what it sees in their place: BERT's masking, in the graph."""

import math
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from kmha.errors import InputError
from kmha.features import MASK_POSITIONS, PADDING_MASK, TOKEN_IDS
from kmha.text.vocabulary import CONTINUATION, MASK, SPECIAL_TOKENS, Tokenization, Vocabulary

# A target where there is no masked token.
NO_TOKEN = -1
# Of the chosen tokens these shares become [MASK] and a random token; the rest stays.
MASKED, REPLACED = 0.8, 0.1
# With whole words a row may go over its share by a part of one word: slots for so many tokens more.
WORD_MARGIN = 8
# Streams of random numbers that must not repeat one another.
_ORDER, _LAST, _KIND, _TOKEN = 1, 2, 3, 4
_NEVER = np.int32(2**31 - 1)
# Kinds of tokens.
_SPECIAL, _FIRST, _CONTINUING = 0, 1, 2


class Masked(NamedTuple):
    """Rows with some tokens hidden.

    Attributes:
        features: token_ids and padding_mask int32 [B, T]; mask_positions int32 [B, M], ascending, then 0.
        targets: int32 [B, M], the true ids at these positions; -1 where there are no more.
    """

    features: dict[str, tf.Tensor]
    targets: tf.Tensor


class Masker(tf.Module):
    """Hides a share of each row's tokens; of those 80 % become [MASK], 10 % a random token, 10 % stay.

    Special tokens ([UNK] among them) and padding are neither hidden nor put in a token's place. A row of n tokens
    that can be hidden gives up `share` of them, rounded up or down at random so that the mean is exact, and at least
    one. What is chosen depends on the row's seed and tokens alone: not on its padding nor on the other rows.

    Args:
        vocabulary: Tokens and their ids.
        tokenization: How texts were cut: in "wordpiece" a token that begins with ## goes on with the word before it.
        share: Of the tokens to hide, in (0, 1).
        whole_word: Whether all tokens of a word are hidden together.

    Raises:
        InputError: The share is out of range, or the vocabulary has special tokens only.
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
        self._kinds = np.array(
            [
                _SPECIAL
                if token in SPECIAL_TOKENS
                else _CONTINUING
                if continues and token.startswith(CONTINUATION) and len(token) > len(CONTINUATION)
                else _FIRST
                for token in vocabulary.tokens
            ],
            np.int32,
        )
        self._ordinary = np.flatnonzero(self._kinds != _SPECIAL).astype(np.int32)
        if not len(self._ordinary):
            raise InputError("vocabulary: expected a token that is not special, got none")

    def slots(self, length: int) -> int:
        """M: as many tokens as a row of T tokens can give up; more than are there are never needed."""
        margin = WORD_MARGIN if self.whole_word else 0
        return min(length, max(1, math.ceil(self.share * length)) + margin)

    def __call__(self, token_ids, padding_mask, seeds, slots: int | tf.Tensor) -> Masked:
        """Hides tokens.

        Args:
            token_ids: int32 [B, T].
            padding_mask: int32 [B, T]; 1 = a real token.
            seeds: int32 [B]; the same seed hides the same tokens of a row.
            slots: M, as `slots` tells it; with fewer, whole words that do not fit are left.
        """
        token_ids, padding_mask, seeds = (
            tf.convert_to_tensor(each, tf.int32) for each in (token_ids, padding_mask, seeds)
        )
        positions, count = self._chosen(token_ids, padding_mask, seeds, slots)
        there = tf.range(slots)[None] < count[:, None]
        true_ids = tf.gather(token_ids, positions, batch_dims=1)
        seen = self._seen(true_ids, positions, seeds)
        length = tf.shape(token_ids)[1]
        # Empty slots write past the end, into a column that is cut off.
        places = tf.where(there, positions, length)
        rows = tf.broadcast_to(tf.range(tf.shape(places)[0])[:, None], tf.shape(places))
        wider = tf.pad(token_ids, [[0, 0], [0, 1]])
        hidden = tf.tensor_scatter_nd_update(wider, tf.stack([rows, places], axis=-1), seen)[:, :length]
        features = {
            TOKEN_IDS: hidden,
            PADDING_MASK: padding_mask,
            MASK_POSITIONS: tf.where(there, positions, 0),
        }
        return Masked(features, tf.where(there, true_ids, NO_TOKEN))

    def _chosen(self, token_ids, padding_mask, seeds, slots):
        """Positions to hide, int32 [B, M], the chosen ones first and ascending, and how many, int32 [B]."""
        kinds = tf.gather(tf.constant(self._kinds), token_ids)
        maskable = tf.logical_and(padding_mask > 0, kinds != _SPECIAL)
        starts = maskable
        if self.whole_word:
            before = tf.pad(maskable[:, :-1], [[0, 0], [1, 0]])
            # A piece with no word before it, as where a long text was cut, is a word by itself.
            starts = tf.logical_and(maskable, tf.logical_or(kinds == _FIRST, tf.logical_not(before)))
        words = tf.cumsum(tf.cast(starts, tf.int32), axis=1)
        # Words in random order: their tokens share a number, and a stable sort keeps them side by side.
        keys = tf.where(maskable, tf.minimum(_noise(seeds, words, _ORDER), _NEVER - 1), _NEVER)
        order = tf.argsort(keys, axis=1, stable=True)
        keys = tf.gather(keys, order, batch_dims=1)
        order, heads = order[:, :slots], keys[:, :slots]
        first = tf.searchsorted(keys, heads, side="left")
        end = tf.searchsorted(keys, heads, side="right")
        available = tf.reduce_sum(tf.cast(maskable, tf.float32), axis=1, keepdims=True)
        expected = tf.maximum(self.share * available, 1.0)
        # The word on the border is in with the probability that makes the mean exact.
        border = tf.cast(first, tf.float32) + _fraction(seeds, _LAST)[:, None] * tf.cast(
            end - first, tf.float32
        )
        chosen = tf.logical_and(heads < _NEVER, tf.logical_or(first == 0, border < expected))
        chosen = tf.logical_and(chosen, end <= slots)
        length = tf.shape(token_ids)[1]
        ascending = tf.sort(tf.where(chosen, order, length), axis=1)
        return tf.minimum(ascending, length - 1), tf.reduce_sum(tf.cast(chosen, tf.int32), axis=1)

    def _seen(self, true_ids, positions, seeds):
        """What stands at the chosen positions, int32 [B, M]."""
        kind = tf.cast(tf.bitwise.right_shift(_noise(seeds, positions, _KIND), 7), tf.float32) / 2.0**24
        index = _noise(seeds, positions, _TOKEN) % len(self._ordinary)
        other = tf.gather(tf.constant(self._ordinary), index)
        kept = tf.where(kind < MASKED + REPLACED, other, true_ids)
        return tf.where(kind < MASKED, self.mask_id, kept)


def _noise(seeds, places, stream: int):
    """A random number for each place of each row, int32 [B, T] in [0, 2**31).

    Not TensorFlow's stateless generator: that draws for a whole batch, and a row's numbers would hang on its padding
    and on the rows beside it.

    Args:
        seeds: int32 [B].
        places: int32 [B, T].
        stream: Which of several independent numbers.
    """
    rows = _spread(tf.bitcast(seeds, tf.uint32) + _uint32(stream * 0x9E3779B9))
    mixed = _spread(tf.bitcast(places, tf.uint32) * _uint32(0x9E3779B1) + rows[:, None])
    mixed = _spread(tf.bitwise.bitwise_xor(mixed, rows[:, None]))
    return tf.bitcast(tf.bitwise.right_shift(mixed, _uint32(1)), tf.int32)


def _fraction(seeds, stream: int):
    """A random number for each row, float32 [B] in [0, 1)."""
    drawn = _noise(seeds, tf.zeros_like(seeds)[:, None], stream)[:, 0]
    return tf.cast(tf.bitwise.right_shift(drawn, 7), tf.float32) / 2.0**24


def _spread(values):
    """Mixes 32 bits one to one, uint32 of any shape.

    Source: the finaliser of MurmurHash3, Appleby 2011, in the public domain.
    """
    for multiplier, shift in ((0x85EBCA6B, 16), (0xC2B2AE35, 13)):
        values = tf.bitwise.bitwise_xor(values, tf.bitwise.right_shift(values, _uint32(shift)))
        values = values * _uint32(multiplier)
    return tf.bitwise.bitwise_xor(values, tf.bitwise.right_shift(values, _uint32(16)))


def _uint32(value: int):
    return tf.constant(value % 2**32, tf.uint32)
