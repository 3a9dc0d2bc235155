"""Text classification with one or several labels per text."""

import dataclasses
from typing import Any

import keras
from keras import ops

from kmha.config import EncoderConfig
from kmha.document_windows import WindowShape
from kmha.errors import InputError
from kmha.features import PADDING_MASK, TOKEN_IDS, text_shapes
from kmha.layers.comparison import unit_vectors
from kmha.layers.document_windows import WindowMode, WindowPooling, split_documents
from kmha.layers.dropout import Dropout
from kmha.layers.linear_ngrams import LinearNgrams
from kmha.layers.pooling import Pooling
from kmha.models.encoder import SingleEncoder, TransformerEncoder, copy_of, layer_norm


@keras.saving.register_keras_serializable(package="kmha")
class TextClassifier(SingleEncoder, keras.Model):
    """Encodes a text, pools it to one vector and computes a logit for each label.

    With windows, a text may be longer than the encoder's maximum length: it is split into overlapping windows, each is
    encoded and pooled, and their vectors are pooled again. For a text of one window, windows change nothing.

    Args:
        encoder: Shape and regularization of the encoder.
        num_labels: Number of labels.
        multi_label: Whether a text may have several labels (sigmoid) instead of exactly one (softmax).
        pooling: "cls", "mean" or "max".
        dropout: Dropout rate of the pooled vector.
        window: Tokens of a window, with the two special tokens; 0: no windows.
        window_overlap: Tokens of the text that a window shares with the next one.
        window_pooling: "mean", "max" or "attention" (see `WindowPooling`).
        linear_rows: Known n-grams of a linear classifier whose logits are added to the head's; 0: none.
        linear_slots: As in `LinearNgrams`.
        linear_displaced: As in `LinearNgrams`.

    Call:
        features: token_ids, segment_ids, padding_mask, int32 [B, T] each.
        return_attention_weights: Whether to return the weights of every block too.
        Returns the logits float32 [B, C], and with the weights also a list of float32 [B, N, T, T]; with windows
        float32 [B · W, N, L, L], ordered by text.

    Raises:
        InputError: The overlap leaves no stride, or a window is longer than the encoder's maximum length.
    """

    def __init__(
        self,
        encoder: EncoderConfig,
        num_labels: int,
        multi_label: bool = False,
        pooling: str = "mean",
        dropout: float = 0.1,
        window: int = 0,
        window_overlap: int = 0,
        window_pooling: WindowMode = "mean",
        linear_rows: int = 0,
        linear_slots: tuple[int, ...] = (),
        linear_displaced: bool = False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.windows = WindowShape(window, window_overlap) if window else None
        if window > encoder.max_length:
            raise InputError(
                f"a window must be at most the encoder's max_length {encoder.max_length}, got {window}"
            )
        self.encoder_config = encoder
        self.num_labels = num_labels
        self.multi_label = multi_label
        self.dropout = dropout
        self.encoder = TransformerEncoder(encoder, final_norm=False, name="encoder", dtype=self.dtype_policy)
        self.pooling = Pooling(pooling, name="pooling", dtype=self.dtype_policy)
        self.window_pooling = (
            WindowPooling(window_pooling, name="window_pooling", dtype=self.dtype_policy) if window else None
        )
        # Normalized after pooling, so that an important token can have a larger weight in the mean.
        self.pooled_norm = layer_norm(self, encoder, "pooled_norm") if encoder.norm == "pre" else None
        self.pooled_dropout = Dropout(dropout, name="pooled_dropout", dtype=self.dtype_policy)
        # float32 whatever the policy: exports are verified to 1e-4.
        self.head = keras.layers.Dense(num_labels, name="head", dtype="float32")
        self.linear = (
            LinearNgrams(num_labels, linear_rows, linear_slots, linear_displaced, name="linear")
            if linear_rows
            else None
        )

    def build(self, features_shape=None):
        """Builds all parts."""
        features_shape = text_shapes() if features_shape is None else features_shape
        pooled_shape = (None, self.encoder_config.hidden_dim)
        self.encoder.build(features_shape)
        self.pooling.build(None)
        if self.window_pooling is not None:
            self.window_pooling.build((None, None, self.encoder_config.hidden_dim))
        if self.pooled_norm is not None:
            self.pooled_norm.build(pooled_shape)
        self.pooled_dropout.build(pooled_shape)
        self.head.build(pooled_shape)
        if self.linear is not None:
            self.linear.build(features_shape[TOKEN_IDS])

    def call(self, features, return_attention_weights=False, training=None):
        """See the class."""
        vector, weights = self._encode(features, return_attention_weights, training)
        logits = self.head(self.pooled_dropout(vector, training=training))
        if self.linear is not None and not training:
            # The encoder is trained alone: the linear path was fitted on the same rows.
            logits = logits + self.linear_logits(features)
        return (logits, weights) if return_attention_weights else logits

    def _encode(self, features, with_weights=False, training=None):
        """The head's input float [B, D], and on request attention weights, else None."""
        read, votes = features, None
        if self.windows is not None:
            read, votes = split_documents(features, self.windows)
        encoded = self.encoder(read, return_attention_weights=with_weights, training=training)
        x, weights = encoded if with_weights else (encoded, None)
        pooled = self.pooling(x, padding_mask=read[PADDING_MASK])
        return self.normalize(pooled if votes is None else self.join_windows(pooled, votes)), weights

    def linear_logits(self, features):
        """The part of the logits that comes from n-grams, float32 [B, C]; only for models with a linear path."""
        assert self.linear is not None
        return self.linear(features[TOKEN_IDS], features[PADDING_MASK])

    def logit_parts(self, features, logits):
        """The contributions of n-grams, float32 [B, T, orders, C], and the parts of the logits [B, C] from both paths.

        See `LinearNgrams.contributions`; the second part is that of the linear path, the third that of the encoder.
        """
        assert self.linear is not None
        linear = self.linear_logits(features)
        ngrams = self.linear.contributions(features[TOKEN_IDS], features[PADDING_MASK])
        return ngrams, linear, logits - linear

    def scale_paths(self, linear: float, encoder: Any) -> None:
        """Multiplies the logits of the linear path by a number, and those of the head by one or one for each label."""
        assert self.linear is not None
        self.linear.scale(linear)
        for weights in (self.head.kernel, self.head.bias):
            weights.assign(weights * encoder)

    def without_linear_path(self) -> "TextClassifier":
        """A copy with the same weights, but without a linear path."""
        return self.with_linear_path(0, ())

    def with_linear_path(self, rows: int, slots: tuple[int, ...]) -> "TextClassifier":
        """A copy with the same weights, but with another linear path, whose weights are zeros.

        See `linear_rows` and `linear_slots` of the class; the slots are displaced.
        """
        return copy_of(self, "linear", linear_rows=rows, linear_slots=slots, linear_displaced=True)

    def pooled_vectors(self, features, training=None):
        """The head's input float [B, D], before dropout."""
        return self._encode(features, training=training)[0]

    def pool_tokens(self, x, features):
        """The head's input float [B, D], from the vectors of tokens, float [B, T, D]."""
        return self.normalize(self.pooling(x, padding_mask=features[PADDING_MASK]))

    def join_windows(self, pooled, votes):
        """Vectors of texts float [B, D], from those of windows [B · W, D], ordered by text, and their votes [B, W]."""
        assert self.window_pooling is not None
        return self.window_pooling(self._by_text(pooled, votes), votes)

    def window_shares(self, features):
        """Share of each window in its text's vector, float32 [B, W] with sum 1; only for models with windows."""
        assert self.windows is not None and self.window_pooling is not None
        read, votes = split_documents(features, self.windows)
        pooled = self.pooling(self.encoder(read, training=False), padding_mask=read[PADDING_MASK])
        return self.window_pooling.shares(self._by_text(pooled, votes), votes)

    def _by_text(self, pooled, votes):
        return ops.reshape(pooled, (*ops.shape(votes), self.encoder_config.hidden_dim))

    def normalize(self, vector):
        """The head's input from pooled vectors, float [B, D]: a pre-norm model normalizes after pooling."""
        return vector if self.pooled_norm is None else self.pooled_norm(vector)

    def vectors(self, features):
        """Unit vectors float32 [B, D] of texts: the head's input, scaled to length 1."""
        return unit_vectors([self._encode(features, training=False)[0]])

    def max_sequence_length(self, text_length: int) -> int:
        """Maximum sequence length in the encoder for texts of at most `text_length` tokens."""
        return text_length if self.windows is None else min(text_length, self.windows.length)

    def probabilities(self, logits):
        """Probabilities float32 [B, C] from logits [B, C]: softmax for one label, sigmoid for several."""
        return ops.sigmoid(logits) if self.multi_label else ops.softmax(logits, axis=-1)

    def decode(self, logits, thresholds=None):
        """Predictions from logits float32 [B, C], in the graph: int32 [B], id of the best label.

        Multi-label: int32 [B, C], 1 = the probability reaches the label's threshold, float32 [C] (None: 0.5).
        """
        if not self.multi_label:
            return ops.cast(ops.argmax(logits, axis=-1), "int32")
        thresholds = 0.5 if thresholds is None else ops.convert_to_tensor(thresholds, "float32")
        return ops.cast(self.probabilities(logits) >= thresholds, "int32")

    def get_config(self):
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "encoder": dataclasses.asdict(self.encoder_config),
            "num_labels": self.num_labels,
            "multi_label": self.multi_label,
            "pooling": self.pooling.mode,
            "dropout": self.dropout,
            "window": self.windows.length if self.windows else 0,
            "window_overlap": self.windows.overlap if self.windows else 0,
            "window_pooling": self.window_pooling.mode if self.window_pooling else "mean",
            "linear_rows": self.linear.rows if self.linear else 0,
            "linear_slots": list(self.linear.slots) if self.linear else [],
            "linear_displaced": self.linear.displaced if self.linear else False,
        }
