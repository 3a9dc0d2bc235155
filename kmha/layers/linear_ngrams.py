"""A linear classifier on TF-IDF n-grams of the model's own tokens, as a layer."""

import keras
import numpy as np
from keras import ops

from kmha.layers.configurable_layer import ConfigurableLayer
from kmha.layers.embedding import FINGERPRINT_MODULUS, FINGERPRINT_MULTIPLIER, MULTIPLIER, Table, ngram_hashes

# Below 2**18, so that int32 cannot overflow. A prime over which pairs of ids spread with the multiplier of
# `ngram_hashes`; see `training.linear.ngrams.PRIMES`.
LARGEST_TABLE = 255_371


def ngram_keys(token_ids, order: int, slots: int):
    """The slot of the n-gram that ends at each position, int32 [B, T] in [0, slots), and its fingerprint.

    A single token is its own slot, with fingerprint 0. Limits as in `ngram_hashes`.
    """
    if order == 1:
        return token_ids, ops.zeros_like(token_ids)
    fingerprints = ngram_hashes(token_ids, order, FINGERPRINT_MULTIPLIER, FINGERPRINT_MODULUS)
    return ngram_hashes(token_ids, order, MULTIPLIER, slots), fingerprints


def packed_keys(size: int, slots: np.ndarray, fingerprints: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """A hash table, int32 [size], for `known_rows`: row number, above 0, and fingerprint of each used slot."""
    packed = np.zeros(size, np.int32)
    packed[slots] = rows * FINGERPRINT_MODULUS + fingerprints
    return packed


def known_rows(packed, slots, fingerprints):
    """Row numbers of keys in a hash table, int32 of the same shape; 0 for a key that the table lacks."""
    values = ops.take(packed, slots)
    is_known = ops.equal(ops.mod(values, FINGERPRINT_MODULUS), fingerprints)
    return ops.floor_divide(values, FINGERPRINT_MODULUS) * ops.cast(is_known, "int32")


@keras.saving.register_keras_serializable(package="kmha")
class LinearNgrams(ConfigurableLayer):
    """Logits of a linear classifier on the n-grams of a text; the weights are fitted outside of Keras.

    Each known n-gram has a row of weights. Its slot in a hash table has the number of that row, and a fingerprint that
    tells it from other n-grams with the same slot. An n-gram counts by its inverse document frequency (idf), and a text
    is divided by the root of the sum of squared idf over all known n-grams in it, repeated ones included.

    Args:
        num_labels: C.
        rows: Known n-grams; row 0 is that of unknown ones.
        slots: Size of the hash table of each order, 0 for an order that is not used; for single tokens the vocabulary
            size, for others below 2**18.

    Call:
        token_ids, padding_mask: int32 [B, T].
        Returns float32 [B, C].
    """

    def __init__(self, num_labels: int, rows: int, slots: tuple[int, ...], **kwargs):
        super().__init__(**{**kwargs, "dtype": "float32", "trainable": False})
        self.num_labels, self.rows, self.slots = num_labels, rows, tuple(slots)
        self.table = Table(
            rows + 1, num_labels, embeddings_initializer="zeros", name="table", dtype="float32"
        )

    def build(self, token_ids_shape, padding_mask_shape=None):
        """Creates the hash tables, the weights and the bias."""
        # A layer that is not trainable does not pass this on to the layers inside.
        self.table.trainable = False
        options = {"initializer": "zeros", "trainable": False}
        self.packed = {
            order: self.add_weight(name=f"slots_{order}", shape=(size,), dtype="int32", **options)
            for order, size in enumerate(self.slots, start=1)
            if size
        }
        self.table.build(token_ids_shape)
        self.squares = self.add_weight(name="squares", shape=(self.rows + 1,), dtype="float32", **options)
        self.bias = self.add_weight(name="bias", shape=(self.num_labels,), dtype="float32", **options)

    def assign(self, keys: np.ndarray, idf: np.ndarray, kernel: np.ndarray, bias: np.ndarray) -> None:
        """Sets the weights.

        Args:
            keys: Order, slot and fingerprint of each n-gram, integers [rows, 3]; no two have the same order and slot.
            idf: float [rows].
            kernel: float [rows, C].
            bias: float [C].
        """
        numbers = np.arange(1, self.rows + 1)
        for order, packed in self.packed.items():
            own = keys[:, 0] == order
            packed.assign(packed_keys(packed.shape[0], keys[own, 1], keys[own, 2], numbers[own]))
        # Row 0, of unknown n-grams, is zero.
        self.table.embeddings.assign(np.concatenate([np.zeros((1, self.num_labels)), kernel * idf[:, None]]))
        self.squares.assign(np.concatenate([[0.0], idf**2]))
        self.bias.assign(bias)

    def ngram_rows(self, token_ids, padding_mask):
        """The row of the n-gram of each order that ends at each position, int32 [B, T, orders]; 0 if it is unknown."""
        found = []
        for order, packed in self.packed.items():
            keys = ngram_keys(token_ids, order, self.slots[order - 1])
            found.append(known_rows(packed, *keys) * padding_mask)
        return ops.stack(found, axis=-1)

    def norm(self, rows):
        """The number that divides a text's sum of weights, float32 [B, 1], from `ngram_rows`."""
        squares = ops.sum(ops.take(self.squares, rows), axis=(1, 2))
        # Known n-grams have an idf of 1 or more. Small constants are 0 in exports with float16 or int8 weights.
        return ops.maximum(ops.sqrt(squares), 1.0)[:, None]

    def call(self, token_ids, padding_mask):
        """See the class."""
        rows = self.ngram_rows(token_ids, padding_mask)
        return ops.sum(self.table(rows), axis=(1, 2)) / self.norm(rows) + self.bias

    def contributions(self, token_ids, padding_mask):
        """What the n-grams that end at each position add to the logits, float32 [B, T, orders, C].

        Those of n tokens are at n - 1. The sum over positions and orders, plus the bias, is the output of the layer.
        """
        rows = self.ngram_rows(token_ids, padding_mask)
        parts = ops.unstack(self.table(rows) / self.norm(rows)[..., None, None], axis=2)
        by_order = dict(zip(self.packed, parts, strict=True))
        unused = ops.zeros_like(parts[0])
        return ops.stack([by_order.get(order, unused) for order in range(1, len(self.slots) + 1)], axis=2)

    def scale(self, factors) -> None:
        """Multiplies the logits by a number or by one for each label, float [C]."""
        self.table.embeddings.assign(self.table.embeddings * factors)
        self.bias.assign(self.bias * factors)

    def compute_output_shape(self, token_ids_shape, padding_mask_shape=None):
        """[B, C]."""
        return (token_ids_shape[0], self.num_labels)
