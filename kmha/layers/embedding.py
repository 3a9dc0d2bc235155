"""Token embedding: token, segment, position and n-gram vectors."""

import keras
from keras import ops

from kmha.layers.ngrams import NgramEmbedding
from kmha.layers.positions import PositionEmbedding
from kmha.layers.table import Table


@keras.saving.register_keras_serializable(package="kmha")
class TokenDropout(keras.layers.Layer):
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

    def get_config(self):
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "rate": self.rate,
            "replacement": self.replacement,
            "first_id": self.first_id,
        }


@keras.saving.register_keras_serializable(package="kmha")
class TextEmbedding(keras.layers.Layer):
    """Sum of the vectors of token, segment, position and, optionally, hashed n-grams.

    Args:
        positions: "learned", "sinusoidal", or "none" (also for rotary, which is part of attention).
        ngram_dropout: Dropout rate of the n-grams' vectors.

    The other arguments are those of `kmha.config.EncoderConfig`.

    Call:
        token_ids: int32 [B, T] in [0, vocabulary_size).
        segment_ids: int32 [B, T] in [0, num_segments); None: all 0.
        token_keep: Probability that a token was not replaced by `TokenDropout` (see `NgramEmbedding`).
        first_position: int32 [B], position of the first token of each row; None: 0.
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
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.max_length = max_length
        self.positions = positions
        self.num_segments = num_segments
        self.tokens = self._table(vocabulary_size, hidden_dim, "tokens")
        self.segments = self._table(num_segments, hidden_dim, "segments") if num_segments else None
        self.position = (
            PositionEmbedding(max_length, positions == "learned", name="position", dtype=self.dtype_policy)
            if positions in ("learned", "sinusoidal")
            else None
        )
        self.ngrams = (
            NgramEmbedding(
                hidden_dim,
                ngram_buckets,
                ngram_dim,
                ngram_orders,
                ngram_dropout,
                name="ngrams",
                dtype=self.dtype_policy,
            )
            if ngram_buckets
            else None
        )

    def _table(self, rows: int, width: int, name: str):
        init = keras.initializers.TruncatedNormal(stddev=0.02)
        return Table(rows, width, embeddings_initializer=init, name=name, dtype=self.dtype_policy)

    def build(self, token_ids_shape, segment_ids_shape=None):
        """Creates the tables."""
        self.tokens.build(token_ids_shape)
        if self.segments is not None:
            self.segments.build(token_ids_shape)
        if self.position is not None:
            self.position.build((*token_ids_shape, self.tokens.output_dim))
        if self.ngrams is not None:
            self.ngrams.build(token_ids_shape)

    def call(self, token_ids, segment_ids=None, token_keep=1.0, first_position=None, training=None):
        """See the class."""
        x = self.tokens(token_ids)
        if self.segments is not None:
            x = x + self.segments(ops.zeros_like(token_ids) if segment_ids is None else segment_ids)
        if self.ngrams is not None:
            x = x + self.ngrams(token_ids, token_keep=token_keep, training=training)
        return x if self.position is None else self.position(x, first=first_position)

    def get_config(self):
        """The constructor's arguments."""
        config = {
            "vocabulary_size": self.tokens.input_dim,
            "hidden_dim": self.tokens.output_dim,
            "max_length": self.max_length,
            "num_segments": self.num_segments,
            "positions": self.positions,
        }
        if self.ngrams is not None:
            ngrams = self.ngrams
            config |= {
                "ngram_buckets": ngrams.buckets,
                "ngram_dim": ngrams.ngram_dim,
                "ngram_orders": list(ngrams.orders),
                "ngram_dropout": ngrams.dropout,
            }
        return {**super().get_config(), **config}
