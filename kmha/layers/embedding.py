"""Token embedding: token, segment, position and n-gram vectors.

Hashed n-gram embeddings are vectors of adjacent tokens, looked up by a hash of their ids.
"""

import keras
import numpy as np
from keras import ops

from kmha.layers.configurable_layer import ConfigurableLayer
from kmha.layers.dropout import Dropout
from kmha.layers.eight_bit import form_of
from kmha.layers.initial_values import normal
from kmha.layers.positions import PositionEmbedding

# Hashes are computed as (hash * multiplier + id) in int32, which cannot overflow below 2**18.
MULTIPLIER = 8191
FINGERPRINT_MULTIPLIER = 127
FINGERPRINT_MODULUS = 8209
FINGERPRINTS = 32


def ngram_hashes(token_ids, order: int, multiplier: int, modulus: int):
    """Hashes the n-gram that ends at each position: int32 [B, T] in [0, modulus), independent of padding on the right.

    hash_1 = id; hash_n(t) = (hash_(n-1)(t - 1) · multiplier + id(t)) mod modulus, with id 0 before the start. Ids and
    modulus are below 2**18 and the multiplier at most 8191, so that int32 cannot overflow; a prime distributes best.
    """
    hashed = token_ids
    for _ in range(order - 1):
        previous = ops.pad(hashed[:, :-1], ((0, 0), (1, 0)))
        hashed = ops.mod(previous * multiplier + token_ids, modulus)
    return hashed


def ngram_slots(token_ids, order: int, buckets: int):
    """Bucket of each n-gram, and a finer slot that distinguishes most n-grams of one bucket.

    From token ids int32 [B, T] to buckets in [0, buckets) and slots in [0, 32 · buckets); limits as in `ngram_hashes`.
    """
    bucket = ngram_hashes(token_ids, order, MULTIPLIER, buckets)
    fingerprint = ngram_hashes(token_ids, order, FINGERPRINT_MULTIPLIER, FINGERPRINT_MODULUS)
    return bucket, bucket * FINGERPRINTS + ops.mod(fingerprint, FINGERPRINTS)


@keras.saving.register_keras_serializable(package="kmha")
class NgramEmbedding(ConfigurableLayer):
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
        options = {"embeddings_initializer": "zeros", "dtype": self.dtype_policy}
        self.tables = [Table(buckets, ngram_dim, name=f"table_{order}", **options) for order in self.orders]
        self.projection = keras.layers.Dense(hidden_dim, name="projection", dtype=self.dtype_policy)
        self.value_dropout = Dropout(dropout, name="value_dropout", dtype=self.dtype_policy)

    def build(self, token_ids_shape):
        """Creates the tables, the n-gram vocabulary mask and the projection."""
        self.known = []
        options = {"dtype": "int8", "initializer": "ones", "trainable": False}
        for table, order in zip(self.tables, self.orders, strict=True):
            table.build(token_ids_shape)
            shape = (self.buckets * FINGERPRINTS,)
            self.known.append(self.add_weight(name=f"known_{order}", shape=shape, **options))
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


@keras.saving.register_keras_serializable(package="kmha")
class Table(keras.layers.Embedding):
    """An embedding lookup that reads only the requested rows.

    Differs: from keras.layers.Embedding, which in TensorFlow reads the whole table first; after sparse updates this
        copies the table in every batch.

    Call:
        inputs: int32 of any shape, in [0, input_dim).
        Returns float [..., output_dim].
    """

    def call(self, inputs):
        """See the class."""
        form = form_of(self)
        if form is not None:
            return form.take(inputs, self.compute_dtype)
        try:
            rows = self.embeddings.value.sparse_read(inputs)
        except AttributeError:  # only TensorFlow variables on one device have this method
            return super().call(inputs)
        return ops.cast(rows, self.compute_dtype)


@keras.saving.register_keras_serializable(package="kmha")
class TokenDropout(ConfigurableLayer):
    """Replaces random tokens by one id in training, against overfitting to single tokens.

    Args:
        rate: Probability of replacing a token, in [0, 1).
        replacement: The id that replaces it.
        first_id: Smaller ids (special tokens) are never replaced.

    Call:
        token_ids: int32 [B, T].
        Returns int32 [B, T]; unchanged outside of training.
    """

    def __init__(self, rate: float, replacement: int, first_id: int = 0, **kwargs):
        super().__init__(**kwargs)
        self.rate = rate
        self.replacement = replacement
        self.first_id = first_id
        self.seed_generator = keras.random.SeedGenerator()

    def build(self, token_ids_shape):
        """Has no weights to create."""

    def call(self, token_ids, training=None):
        """See the class."""
        if not training or not self.rate:
            return token_ids
        drawn = keras.random.uniform(ops.shape(token_ids), dtype="float32", seed=self.seed_generator)
        dropped = ops.logical_and(drawn < self.rate, token_ids >= self.first_id)
        return ops.where(dropped, ops.cast(self.replacement, token_ids.dtype), token_ids)


@keras.saving.register_keras_serializable(package="kmha")
class TextEmbedding(ConfigurableLayer):
    """Sum of the vectors of token, segment, position and, optionally, hashed n-grams.

    Args:
        positions: "learned", "sinusoidal", or "none" (also for rotary, which is part of attention).
        ngram_dropout: Dropout rate of the n-grams' vectors.
        mask_zero: Whether the result has a Keras mask, in which tokens of id 0 are padding.

    The other arguments are those of `kmha.config.EncoderConfig`.

    Call:
        token_ids: int32 [B, T] in [0, vocabulary_size).
        segment_ids: int32 [B, T] in [0, num_segments); None: all 0.
        token_keep: Probability that a token was not replaced by `TokenDropout` (see `NgramEmbedding`).
        first_position: int32 [B], position of the first token of each row; None: 0.
        position_ids: int32 [B, T], position of each token; None: they are consecutive.
        Returns float [B, T, hidden_dim].

    Raises:
        ValueError: T is known and larger than max_length.
    Source: Devlin et al. 2019, §3, arXiv:1810.04805.
    """

    def __init__(
        self,
        vocabulary_size: int,
        hidden_dim: int,
        max_length: int,
        num_segments: int = 0,
        positions: str = "learned",
        ngram_buckets: int = 0,
        ngram_dim: int = 64,
        ngram_orders: tuple[int, ...] = (2, 3),
        ngram_dropout: float = 0.0,
        mask_zero: bool = False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.mask_zero = mask_zero
        self.vocabulary_size, self.hidden_dim, self.max_length = vocabulary_size, hidden_dim, max_length
        self.num_segments, self.positions = num_segments, positions
        self.ngram_buckets, self.ngram_dim = ngram_buckets, ngram_dim
        self.ngram_orders, self.ngram_dropout = tuple(ngram_orders), ngram_dropout
        self.tokens = self._table(vocabulary_size, hidden_dim, "tokens")
        self.segments = self._table(num_segments, hidden_dim, "segments") if num_segments else None
        self.position = None
        if positions in ("learned", "sinusoidal"):
            learned, options = positions == "learned", {"name": "position", "dtype": self.dtype_policy}
            self.position = PositionEmbedding(max_length, learned, **options)
        ngrams = (hidden_dim, ngram_buckets, ngram_dim, ngram_orders, ngram_dropout)
        options = {"name": "ngrams", "dtype": self.dtype_policy}
        self.ngrams = NgramEmbedding(*ngrams, **options) if ngram_buckets else None

    def _table(self, rows: int, width: int, name: str):
        return Table(rows, width, embeddings_initializer=normal(), name=name, dtype=self.dtype_policy)

    def build(self, token_ids_shape, segment_ids_shape=None):
        """Creates the tables."""
        self.tokens.build(token_ids_shape)
        if self.segments is not None:
            self.segments.build(token_ids_shape)
        if self.position is not None:
            self.position.build((*token_ids_shape, self.tokens.output_dim))
        if self.ngrams is not None:
            self.ngrams.build(token_ids_shape)

    def call(
        self,
        token_ids,
        segment_ids=None,
        token_keep=1.0,
        first_position=None,
        position_ids=None,
        training=None,
    ):
        """See the class."""
        x = self.tokens(token_ids)
        if self.segments is not None:
            x = x + self.segments(ops.zeros_like(token_ids) if segment_ids is None else segment_ids)
        if self.ngrams is not None:
            x = x + self.ngrams(token_ids, token_keep=token_keep, training=training)
        if self.position is None:
            return x
        return self.position(x, first=first_position, positions=position_ids)

    def compute_mask(self, token_ids, previous_mask=None):
        """Bool [B, T], False where the id is 0; None without `mask_zero`."""
        return ops.not_equal(token_ids, 0) if self.mask_zero else None
