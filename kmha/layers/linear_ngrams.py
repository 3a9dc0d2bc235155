"""A linear classifier on TF-IDF n-grams of the model's own tokens, as a layer."""

from collections.abc import Mapping

import keras
import numpy as np
from keras import ops

from kmha.layers.configurable_layer import ConfigurableLayer
from kmha.layers.embedding import FINGERPRINT_MODULUS, FINGERPRINT_MULTIPLIER, MULTIPLIER, Table, ngram_hashes

# Below 2**18, so that int32 cannot overflow. A prime over which pairs of ids spread with the multiplier of
# `ngram_hashes`; see `training.linear.ngrams.PRIMES`.
LARGEST_TABLE = 255_371
# Slots of a hash table for each group of n-grams.
SLOTS_OF_GROUP = 4


def ngram_keys(token_ids, order: int, slots: int):
    """The slot of the n-gram that ends at each position, int32 [B, T] in [0, slots), and its fingerprint.

    A single token is its own slot, with fingerprint 0. Limits as in `ngram_hashes`.
    """
    if order == 1:
        return token_ids, ops.zeros_like(token_ids)
    fingerprints = ngram_hashes(token_ids, order, FINGERPRINT_MULTIPLIER, FINGERPRINT_MODULUS)
    return ngram_hashes(token_ids, order, MULTIPLIER, slots), fingerprints


def num_groups(size: int) -> int:
    """Groups of n-grams with a displacement of their own, for a hash table with so many slots."""
    return max(1, size // SLOTS_OF_GROUP)


def ngram_groups(hashes, fingerprints, groups: int):
    """The group of n-grams, int32 in [0, groups), from `ngram_keys` with `LARGEST_TABLE` slots."""
    # Squared, because hash and fingerprint are both linear in the token ids.
    return ops.mod(hashes + fingerprints * fingerprints, groups)


def displaced_slots(hashes, fingerprints, displacements, size: int):
    """The slots of n-grams in a table of any size, int32 in [0, size), from `ngram_keys` with `LARGEST_TABLE` slots.

    All n-grams of a group are displaced by the same number. So known n-grams can have different slots in a table that
    is almost full.

    Source: Pagh 1999, "Hash and Displace: Efficient Evaluation of Minimal Perfect Hash Functions".
    """
    groups = ngram_groups(hashes, fingerprints, num_groups(size))
    return ops.mod(hashes + ops.take(displacements, groups), size)


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
    distinguishes it from unknown n-grams with the same slot. An n-gram counts by its inverse document frequency (idf),
    and a text is divided by the root of the sum of squared idf over all known n-grams in it, repeated ones included.

    Args:
        num_labels: C.
        rows: Known n-grams; row 0 is that of unknown ones.
        slots: Size of the hash table of each order, 0 for an order that is not used; for single tokens the vocabulary
            size, for others below 2**18.
        displaced: Whether slots are those of `displaced_slots`; False: hashes modulo the size, as in runs of earlier
            versions.

    Call:
        token_ids, padding_mask: int32 [B, T].
        Returns float32 [B, C].
    """

    def __init__(self, num_labels: int, rows: int, slots: tuple[int, ...], displaced: bool = False, **kwargs):
        super().__init__(**{**kwargs, "dtype": "float32", "trainable": False})
        self.num_labels, self.rows, self.slots, self.displaced = num_labels, rows, tuple(slots), displaced
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
        self.displacements = {
            order: self.add_weight(
                name=f"displacements_{order}", shape=(num_groups(size),), dtype="int32", **options
            )
            for order, size in enumerate(self.slots, start=1)
            if size and order > 1 and self.displaced
        }
        self.table.build(token_ids_shape)
        self.squares = self.add_weight(name="squares", shape=(self.rows + 1,), dtype="float32", **options)
        self.bias = self.add_weight(name="bias", shape=(self.num_labels,), dtype="float32", **options)

    def assign(
        self,
        keys: np.ndarray,
        idf: np.ndarray,
        kernel: np.ndarray,
        bias: np.ndarray,
        displacements: Mapping[int, np.ndarray] | None = None,
    ) -> None:
        """Sets the weights.

        Args:
            keys: Order, hash and fingerprint of each n-gram, integers [rows, 3]; no two have the same order and slot.
            idf: float [rows].
            kernel: float [rows, C].
            bias: float [C].
            displacements: Of each order above 1, integers; only if `displaced`.
        """
        numbers = np.arange(1, self.rows + 1)
        for order, packed in self.packed.items():
            own = keys[:, 0] == order
            hashes, fingerprints = keys[own, 1:].T.astype(np.int32)
            if order in self.displacements:
                assert displacements is not None
                self.displacements[order].assign(displacements[order])
            slots = ops.convert_to_numpy(self._slots(order, hashes, fingerprints))
            packed.assign(packed_keys(packed.shape[0], slots, fingerprints, numbers[own]))
        # Row 0, of unknown n-grams, is zero.
        self.table.embeddings.assign(np.concatenate([np.zeros((1, self.num_labels)), kernel * idf[:, None]]))
        self.squares.assign(np.concatenate([[0.0], idf**2]))
        self.bias.assign(bias)

    def _slots(self, order: int, hashes, fingerprints):
        """The slots of n-grams in the hash table of an order, int32 of the same shape."""
        if order not in self.displacements:
            return hashes
        return displaced_slots(hashes, fingerprints, self.displacements[order], self.slots[order - 1])

    def ngram_rows(self, token_ids, padding_mask):
        """The row of the n-gram of each order that ends at each position, int32 [B, T, orders]; 0 if it is unknown."""
        found = []
        for order, packed in self.packed.items():
            hashes, fingerprints = ngram_keys(
                token_ids, order, LARGEST_TABLE if self.displaced else self.slots[order - 1]
            )
            slots = self._slots(order, hashes, fingerprints)
            found.append(known_rows(packed, slots, fingerprints) * padding_mask)
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
