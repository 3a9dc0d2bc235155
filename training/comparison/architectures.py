"""Architectures that attention is compared with: the same embedding and head, another encoder.

They are built, trained, evaluated and timed, but never saved. The layers are called with inputs float [B, T, D] and
padding_mask int32 [B, T], 1 = a real token.
"""

import dataclasses
from typing import Any

import keras
from keras import ops

from kmha.config import EncoderConfig
from kmha.features import PADDING_MASK, text_shapes
from kmha.layers.pooling import max_pool, mean_pool
from kmha.models.encoder import SingleEncoder, TransformerEncoder

WIDTHS = (3, 4, 5)


def embedding_only(encoder: EncoderConfig, hidden_dim: int | None = None) -> EncoderConfig:
    """The configuration without blocks and positions, optionally with another width."""
    return dataclasses.replace(
        encoder,
        hidden_dim=hidden_dim or encoder.hidden_dim,
        num_layers=0,
        num_heads=1,
        head_dim=None,
        positions="none",
        norm="pre",
    )


class MeanPooling(keras.layers.Layer):
    """The mean of the token vectors, float [B, D]; fastText, Joulin et al. 2017, arXiv:1607.01759."""

    def build(self, inputs_shape):
        """Sets the size of the output; there are no weights."""
        self.output_dim = inputs_shape[-1]

    def call(self, inputs, padding_mask):
        """See the class."""
        return mean_pool(inputs, padding_mask)


class CNN(keras.layers.Layer):
    """Convolutions of widths 3, 4 and 5 with max-pooling, float [B, 3 · filters].

    A window starts at each real token and reads zeros after the last one, so short texts have an output too, and no
    output depends on the padding.

    Source: Kim 2014, arXiv:1408.5882.
    """

    def __init__(self, filters: int, **kwargs):
        super().__init__(**kwargs)
        self.output_dim = filters * len(WIDTHS)
        self.filters = [
            keras.layers.Conv1D(filters, width, activation="relu", name=f"width_{width}") for width in WIDTHS
        ]

    def build(self, inputs_shape):
        """Builds the filters."""
        for filters in self.filters:
            filters.build(inputs_shape)

    def call(self, inputs, padding_mask):
        """See the class."""
        real = inputs * ops.cast(ops.expand_dims(padding_mask, -1), inputs.dtype)
        found = []
        for filters, width in zip(self.filters, WIDTHS, strict=True):
            outputs = filters(ops.pad(real, ((0, 0), (0, width - 1), (0, 0))))
            found.append(max_pool(outputs, padding_mask))
        return ops.concatenate(found, axis=-1)


class BiLSTM(keras.layers.Layer):
    """A bidirectional LSTM with max-pooling, float [B, 2 · units]; the backward LSTM starts at the last real token.

    Source: Graves and Schmidhuber 2005, doi:10.1016/j.neunet.2005.06.042; max-pooling: Conneau et al. 2017,
        arXiv:1705.02364.
    """

    def __init__(self, units: int, **kwargs):
        super().__init__(**kwargs)
        self.output_dim = 2 * units
        # cuDNN does not support all masks; the plain kernels give equal results on every device.
        lstm = keras.layers.LSTM(units, return_sequences=True, use_cudnn=False)
        self.directions = keras.layers.Bidirectional(lstm, name="directions")

    def build(self, inputs_shape):
        """Builds both directions."""
        self.directions.build(inputs_shape)

    def call(self, inputs, padding_mask, training=None):
        """See the class."""
        states = self.directions(inputs, mask=ops.cast(padding_mask, "bool"), training=training)
        return max_pool(states, padding_mask)


class PeerClassifier(SingleEncoder, keras.Model):
    """A classifier with the embedding and head of a pre-norm `TextClassifier`, and another encoder.

    `encoder` is the configuration of the embedding, without blocks (see `embedding_only`). `reader` computes the vector
    of a text, to which dropout is applied. Calls with features, each int32 [B, T], return logits float32 [B, C].
    """

    def __init__(self, encoder: EncoderConfig, num_labels: int, reader: Any, dropout: float, **kwargs):
        super().__init__(**kwargs)
        self.encoder_config = encoder
        self.num_labels = num_labels
        self.encoder = TransformerEncoder(self.encoder_config, final_norm=False, name="embedding")
        self.reader = reader
        # As in the classifier: without it, the head of a mean of small vectors learns too slowly.
        self.vector_norm = keras.layers.LayerNormalization(epsilon=encoder.norm_epsilon, name="vector_norm")
        self.vector_dropout = keras.layers.Dropout(dropout, name="vector_dropout")
        self.head = keras.layers.Dense(num_labels, name="head", dtype="float32")

    def build(self, features_shape=None):
        """Builds the layers."""
        self.encoder.build(text_shapes() if features_shape is None else features_shape)
        self.reader.build((None, None, self.encoder_config.hidden_dim))
        self.vector_norm.build((None, self.reader.output_dim))
        self.vector_dropout.build((None, self.reader.output_dim))
        self.head.build((None, self.reader.output_dim))

    def call(self, features, training=None):
        """See the class."""
        x = self.encoder(features, training=training)
        vector = self.reader(x, padding_mask=features[PADDING_MASK], training=training)
        return self.head(self.vector_dropout(self.vector_norm(vector), training=training))

    def probabilities(self, logits):
        """float32 [B, C] from logits [B, C]."""
        return ops.softmax(logits, axis=-1)
