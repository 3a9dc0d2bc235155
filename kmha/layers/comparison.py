"""Comparison of two texts: features of two vectors, unit vectors for cosines, and token overlap.

Token overlap is weighted by rarity: strong features for matching with little data.
"""

import keras
import numpy as np
from keras import ops

from kmha.layers.configurable_layer import ConfigurableLayer


def comparison_features(a, b, symmetric: bool = False):
    """Features of two vectors float [B, D]: a, b, |a - b|, a · b; symmetric: a + b, |a - b|, a · b.

    Source: Mou et al. 2016, arXiv:1512.08422.
    """
    return [*([a + b] if symmetric else [a, b]), ops.abs(a - b), a * b]


def unit_vectors(vectors):
    """Concatenates vectors float [B, …] and scales the result to length 1: float32 [B, D]; zeros stay zeros."""
    joined = ops.cast(ops.concatenate(vectors, axis=-1) if len(vectors) > 1 else vectors[0], "float32")
    return joined * ops.rsqrt(ops.maximum(ops.sum(joined * joined, axis=-1, keepdims=True), 1e-12))


@keras.saving.register_keras_serializable(package="kmha")
class Standardise(keras.layers.Layer):
    """Standardizes features: (inputs - mean) · scale, with mean and scale set before training and then fixed.

    Call:
        inputs: float [B, D].
        Returns float [B, D]; the inputs until `assign` is called.
    """

    def build(self, inputs_shape):
        """Creates mean and scale."""
        shape = (inputs_shape[-1],)
        self.mean = self.add_weight(name="mean", shape=shape, initializer="zeros", trainable=False)
        self.scale = self.add_weight(name="scale", shape=shape, initializer="ones", trainable=False)

    def assign(self, mean, scale) -> None:
        """Sets mean and scale, float [D] each."""
        self.mean.assign(np.asarray(mean, np.float32))
        self.scale.assign(np.asarray(scale, np.float32))

    def call(self, inputs):
        """See the class."""
        return (inputs - self.mean) * self.scale


ORDERS = (1, 2, 3)
# Features of a token: shared, shared · rarity, not shared · rarity, end of a shared bigram, of a shared trigram.
MARKS = 2 + len(ORDERS)
# Features of a text: shares of shared n-grams, weighted by rarity and unweighted; sum of shared rarity; length.
SHARES = 2 * len(ORDERS) + 2


def shared_ngrams(ids_a, ids_b, words_a, words_b, orders=ORDERS):
    """For each ascending order of n-grams float32 [B, T, S]: 1 where those that end at both positions are equal.

    The ids int32 are [B, T] and [B, S]; words float32: 1 = may be shared, 0 = padding, special or unknown.
    """
    equal = ops.cast(ops.equal(ops.expand_dims(ids_a, 2), ops.expand_dims(ids_b, 1)), "float32")
    equal = equal * ops.expand_dims(words_a, 2) * ops.expand_dims(words_b, 1)
    found, longest = [], equal
    for order in range(1, max(orders) + 1):
        if order > 1:
            longest = ops.pad(longest[:, :-1, :-1], ((0, 0), (1, 0), (1, 0))) * equal
        if order in orders:
            found.append(longest)
    return found


@keras.saving.register_keras_serializable(package="kmha")
class TokenOverlap(ConfigurableLayer):
    """Overlap features of two texts: marks of tokens and shares of texts.

    `adapt` sets the rarity of each token; before, all rarities are 1.

    Args:
        vocabulary_size: Rows of the rarity table.
        first_id: Smaller ids (special and unknown tokens) are never shared.

    Call:
        ids_a: int32 [B, T].
        ids_b: int32 [B, S].
        mask_a: int32 or bool [B, T]; 1 = a real token.
        mask_b: int32 or bool [B, S].
        Returns marks of A float32 [B, T, 5] and of B [B, S, 5], and shares of A and of B, float32 [B, 8] each. All are
        in [0, 1] except for the last two shares: the sum of the rarities of shared words, and log(1 + words).
    """

    def __init__(self, vocabulary_size: int, first_id: int = 0, **kwargs):
        super().__init__(**kwargs)
        self.vocabulary_size = vocabulary_size
        self.first_id = first_id

    def build(self, ids_a_shape=None, ids_b_shape=None, mask_a_shape=None, mask_b_shape=None):
        """Creates the rarity table."""
        options = {"dtype": "float32", "initializer": "ones", "trainable": False, "autocast": False}
        self.rarity = self.add_weight(name="rarity", shape=(self.vocabulary_size,), **options)

    def adapt(self, batches) -> None:
        """Sets the rarity of each token from the number of texts with it.

        rarity = log((R + 1) / (r + 0.5)) / log((R + 1) / 0.5) for a token in r of R texts: 1 for r = 0.

        Args:
            batches: Yields token ids, integers [B, T], padded with 0.
        """
        texts, counts = 0, np.zeros(self.vocabulary_size)
        for token_ids in batches:
            token_ids = np.asarray(token_ids, np.int64)
            rows = np.repeat(np.arange(len(token_ids)), token_ids.shape[1])
            once = np.unique(rows * self.vocabulary_size + token_ids.ravel()) % self.vocabulary_size
            counts += np.bincount(once, minlength=self.vocabulary_size)
            texts += len(token_ids)
        rarity = np.log((texts + 1) / (counts + 0.5)) / np.log((texts + 1) / 0.5)
        self.rarity.assign(np.clip(rarity, 0, 1).astype(np.float32))

    def call(self, ids_a, ids_b, mask_a, mask_b):
        """See the class."""
        words_a, words_b = self._words(ids_a, mask_a), self._words(ids_b, mask_b)
        shared = shared_ngrams(ids_a, ids_b, words_a, words_b)
        marks_a, shares_a = self._side(ids_a, words_a, [ops.max(each, axis=2) for each in shared])
        marks_b, shares_b = self._side(ids_b, words_b, [ops.max(each, axis=1) for each in shared])
        return marks_a, marks_b, shares_a, shares_b

    def _words(self, ids, mask):
        return ops.cast(ids >= self.first_id, "float32") * ops.cast(mask, "float32")

    def _side(self, ids, words, shared):
        """Marks [B, T, 5] and shares [B, 8] of one text; `shared`: float32 [B, T] for each order."""
        rarity = ops.take(self.rarity, ids, axis=0) * words
        single, *longer = shared
        marks = [single, rarity * single, rarity * (1.0 - single), *longer]
        count = ops.sum(words, axis=1)
        rarities = ops.maximum(ops.sum(rarity, axis=1), 1e-6)
        shares = [ops.sum(rarity * found, axis=1) / rarities for found in shared]
        for order, found in zip(ORDERS, shared, strict=True):
            shares.append(ops.sum(found, axis=1) / ops.maximum(count - (order - 1.0), 1.0))
        shares.append(ops.sum(rarity * single, axis=1))
        # Not log1p, which ONNX lacks; the count is an integer, so no precision is lost.
        shares.append(ops.log(1.0 + count))
        return ops.stack(marks, axis=-1), ops.stack(shares, axis=-1)
