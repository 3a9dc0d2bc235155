"""Hashed n-gram embeddings: vectors of adjacent tokens, looked up by a hash of their ids."""

import keras
import numpy as np
from keras import ops

from kmha.layers.table import Table

# Hashes are computed as (hash * multiplier + id) in int32, which cannot overflow below 2**18.
MULTIPLIER = 8191
FINGERPRINT_MULTIPLIER = 127
FINGERPRINT_MODULUS = 8209
FINGERPRINTS = 32


def ngram_hashes(token_ids, order: int, multiplier: int, modulus: int):
    """Hashes the n-gram that ends at each position.

    hash_1 = id; hash_n(t) = (hash_(n-1)(t - 1) · multiplier + id(t)) mod modulus, with id 0 before the start.

    Args:
        token_ids: int32 [B, T], below 2**18.
        order: The n of the n-gram, at least 2.
        multiplier: At most 8191, so that int32 cannot overflow.
        modulus: Below 2**18; a prime distributes best.

    Returns:
        int32 [B, T] in [0, modulus). Depends on positions up to t only, not on padding on the right.
    """
    hashed = token_ids
    for _ in range(order - 1):
        previous = ops.pad(hashed[:, :-1], ((0, 0), (1, 0)))
        hashed = ops.mod(previous * multiplier + token_ids, modulus)
    return hashed


def ngram_slots(token_ids, order: int, buckets: int):
    """Bucket of each n-gram, and a finer slot that distinguishes most n-grams of one bucket.

    Args:
        token_ids: int32 [B, T], below 2**18.
        order: The n of the n-gram, at least 2.
        buckets: Size of the hash space, below 2**18.

    Returns:
        Buckets int32 [B, T] in [0, buckets) and slots int32 [B, T] in [0, 32 · buckets).
    """
    bucket = ngram_hashes(token_ids, order, MULTIPLIER, buckets)
    fingerprint = ngram_hashes(token_ids, order, FINGERPRINT_MULTIPLIER, FINGERPRINT_MODULUS)
    return bucket, bucket * FINGERPRINTS + ops.mod(fingerprint, FINGERPRINTS)


@keras.saving.register_keras_serializable(package="kmha")
class NgramEmbedding(keras.layers.Layer):
    """Maps the hashed n-grams that end at each position to a vector of the model's size.

    Only n-grams in the n-gram vocabulary mask are used: `adapt` sets it to those that occur in several training texts,
    because an n-gram of a single text only leads to overfitting. Before `adapt`, all n-grams are used.

    Args:
        hidden_dim: Size of the result.
        buckets: Rows of each table, below 2**18.
        ngram_dim: Width of each table.
        orders: The n of each table.
        dropout: Dropout rate of the tables' output.

    Call:
        token_ids: int32 [B, T], below 2**18.
        token_keep: Probability that a token was not replaced by `TokenDropout`. An n-gram of order n is intact with
            probability token_keep ** n; its vector is divided by that, so that its mean is the same as in prediction.
        Returns float [B, T, hidden_dim].

    Source: fastText's hashed n-grams, Joulin et al. 2017, arXiv:1607.01759; here they enter the token stream.
    """

    def __init__(
        self,
        hidden_dim: int,
        buckets: int,
        ngram_dim: int = 64,
        orders: tuple[int, ...] = (2, 3),
        dropout: float = 0.0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.hidden_dim = hidden_dim
        self.buckets = buckets
        self.ngram_dim = ngram_dim
        self.orders = tuple(orders)
        self.dropout = dropout
        # Zero initial values: a rarely trained n-gram has little influence.
        self.tables = [
            Table(
                buckets,
                ngram_dim,
                embeddings_initializer="zeros",
                name=f"table_{order}",
                dtype=self.dtype_policy,
            )
            for order in self.orders
        ]
        self.projection = keras.layers.Dense(hidden_dim, name="projection", dtype=self.dtype_policy)
        self.value_dropout = keras.layers.Dropout(dropout, name="value_dropout", dtype=self.dtype_policy)

    def build(self, token_ids_shape):
        """Creates the tables, the n-gram vocabulary mask and the projection."""
        self.known = []
        for table, order in zip(self.tables, self.orders, strict=True):
            table.build(token_ids_shape)
            self.known.append(
                self.add_weight(
                    name=f"known_{order}",
                    shape=(self.buckets * FINGERPRINTS,),
                    dtype="int8",
                    initializer="ones",
                    trainable=False,
                )
            )
        self.projection.build((*token_ids_shape, self.ngram_dim * len(self.orders)))
        self.value_dropout.build(None)

    def adapt(self, batches, min_rows: int = 2) -> list[int]:
        """Sets the n-gram vocabulary mask to the n-grams that occur in several training texts.

        Args:
            batches: Yields token ids, integers [B, T], padded on the right with 0, each text once.
            min_rows: Minimum number of texts with the n-gram.

        Returns:
            Number of n-grams in the mask, for each order.
        """
        counts = [np.zeros(known.shape, np.uint8) for known in self.known]
        for token_ids in batches:
            token_ids = np.asarray(token_ids, "int32")
            rows, columns = np.nonzero(token_ids)
            for count, order in zip(counts, self.orders, strict=True):
                slots = ops.convert_to_numpy(ngram_slots(token_ids, order, self.buckets)[1])
                # One number for each pair of slot and row: sorting groups the rows of a slot. NumPy's `unique` is many
                # times slower than its `sort`.
                pairs = np.sort(slots[rows, columns].astype(np.int64) * len(token_ids) + rows)
                distinct_slots = pairs[np.diff(pairs, prepend=-1) > 0] // len(token_ids)
                starts = np.flatnonzero(np.diff(distinct_slots, prepend=-1))
                found, times = distinct_slots[starts], np.diff(starts, append=len(distinct_slots))
                # Saturates at min_rows, so that uint8 cannot overflow.
                count[found] = np.minimum(count[found].astype(int) + times, min_rows)
        for known, count in zip(self.known, counts, strict=True):
            known.assign((count >= min_rows).astype("int8"))
        return [int((count >= min_rows).sum()) for count in counts]

    def call(self, token_ids, token_keep=1.0, training=None):
        """See the class."""
        vectors = []
        for table, known, order in zip(self.tables, self.known, self.orders, strict=True):
            bucket, slot = ngram_slots(token_ids, order, self.buckets)
            counts = ops.cast(ops.take(known, slot), self.compute_dtype) * token_keep**-order
            vectors.append(table(bucket) * ops.expand_dims(counts, -1))
        joined = vectors[0] if len(vectors) == 1 else ops.concatenate(vectors, axis=-1)
        return self.projection(self.value_dropout(joined, training=training))

    def compute_output_shape(self, token_ids_shape):
        """[B, T, hidden_dim]."""
        return (*token_ids_shape, self.hidden_dim)

    def get_config(self):
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "hidden_dim": self.hidden_dim,
            "buckets": self.buckets,
            "ngram_dim": self.ngram_dim,
            "orders": list(self.orders),
            "dropout": self.dropout,
        }
