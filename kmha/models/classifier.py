"""Text classification: one label of many, or several at once."""

import dataclasses

import keras
from keras import ops

from kmha.config import EncoderConfig
from kmha.features import PADDING_MASK, text_shapes
from kmha.layers.pooling import Pooling
from kmha.models.encoder import TransformerEncoder
from kmha.models.one_encoder import OneEncoder


@keras.saving.register_keras_serializable(package="kmha")
class TextClassifier(OneEncoder, keras.Model):
    """Encodes a text, pools it to one vector and scores each label.

    Args:
        encoder: Shape and regularisation of the encoder.
        num_labels: Labels to choose from.
        multi_label: Whether a text may carry several labels (sigmoid) instead of exactly one (softmax).
        pooling: "cls", "mean" or "max".
        dropout: Probability of dropping a value of the pooled vector.

    Call:
        features: token_ids, segment_ids, padding_mask, each int32 [B, T].
        return_attention_weights: Whether to return those of every block beside the logits.
        Returns float32 [B, C], the logits, and with the weights a list of float32 [B, N, T, T].
    """

    def __init__(
        self,
        encoder: EncoderConfig,
        num_labels: int,
        multi_label: bool = False,
        pooling: str = "mean",
        dropout: float = 0.1,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.encoder_config = encoder
        self.num_labels = num_labels
        self.multi_label = multi_label
        self.dropout = dropout
        self.encoder = TransformerEncoder(encoder, final_norm=False, name="encoder", dtype=self.dtype_policy)
        self.pooling = Pooling(pooling, name="pooling", dtype=self.dtype_policy)
        # Pooled first and normalised after, so that a telling token may weigh more in the mean than the others.
        self.pooled_norm = (
            keras.layers.LayerNormalization(
                epsilon=encoder.norm_epsilon, name="pooled_norm", dtype=self.dtype_policy
            )
            if encoder.norm == "pre"
            else None
        )
        self.pooled_dropout = keras.layers.Dropout(dropout, name="pooled_dropout", dtype=self.dtype_policy)
        # float32 whatever the policy: probabilities are compared across formats to 1e-4.
        self.head = keras.layers.Dense(num_labels, name="head", dtype="float32")

    def build(self, features_shape=None):
        """Builds each part; the shapes of the features are known."""
        features_shape = text_shapes() if features_shape is None else features_shape
        pooled_shape = (None, self.encoder_config.hidden_dim)
        self.encoder.build(features_shape)
        self.pooling.build(None)
        if self.pooled_norm is not None:
            self.pooled_norm.build(pooled_shape)
        self.pooled_dropout.build(pooled_shape)
        self.head.build(pooled_shape)

    def call(self, features, return_attention_weights=False, training=None):
        """See the class."""
        x = self.encoder(features, return_attention_weights=return_attention_weights, training=training)
        x, weights = x if return_attention_weights else (x, None)
        logits = self.head(self.pooled_dropout(self.pooled(x, features), training=training))
        return (logits, weights) if return_attention_weights else logits

    def pooled(self, x, features):
        """The vector float [B, D] that the head reads, of a text's tokens, float [B, T, D]."""
        pooled = self.pooling(x, padding_mask=features[PADDING_MASK])
        return pooled if self.pooled_norm is None else self.pooled_norm(pooled)

    def probabilities(self, logits):
        """float32 [B, C] from logits [B, C]: softmax for one label, a sigmoid each for several."""
        return ops.sigmoid(logits) if self.multi_label else ops.softmax(logits, axis=-1)

    def decode(self, logits, thresholds=None):
        """Answers from logits [B, C], in the graph.

        Args:
            logits: float32 [B, C].
            thresholds: float32 [C]; with several labels, from which probability each is given (None: 0.5).

        Returns:
            int32 [B], the best label's id; with several labels int32 [B, C], 1 = given.
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
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        """The model that `get_config` describes."""
        return cls(**{**config, "encoder": EncoderConfig(**config["encoder"])})
