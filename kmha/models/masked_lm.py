"""Masked language modeling: predicts the tokens at masked positions."""

import dataclasses

import keras
from keras import ops

from kmha.config import EncoderConfig
from kmha.features import MASK_POSITIONS, text_shapes
from kmha.layers.encoder_block import ACTIVATIONS
from kmha.models.encoder import SingleEncoder, TransformerEncoder, layer_norm


@keras.saving.register_keras_serializable(package="kmha")
class MaskedLanguageModel(SingleEncoder, keras.Model):
    """Encodes a text and computes a logit for each token of the vocabulary at the masked positions only.

    logits = norm(activation(h W + b)) Eᵀ + c, where h is the encoder's vector at a masked position and E the encoder's
    token embedding: input and output share weights.

    Args:
        encoder: Shape and regularization of the encoder.

    Call:
        features: token_ids, padding_mask and optionally segment_ids, int32 [B, T] each; mask_positions int32 [B, M] in
            [0, T).
        Returns the logits float32 [B, M, V].

    Source: Devlin et al. 2019, §3.1, arXiv:1810.04805; tied weights: Press and Wolf 2017, arXiv:1608.05859.
    """

    # The outputs are tokens, not labels.
    num_labels = 0

    def __init__(self, encoder: EncoderConfig, **kwargs):
        super().__init__(**kwargs)
        self.encoder_config = encoder
        self.encoder = TransformerEncoder(encoder, final_norm=False, name="encoder", dtype=self.dtype_policy)
        # Normalizes the output of a pre-norm encoder, here at the masked positions only.
        self.masked_norm = layer_norm(self, encoder, "masked_norm") if encoder.norm == "pre" else None
        self.transform = keras.layers.Dense(encoder.hidden_dim, name="transform", dtype=self.dtype_policy)
        self.transform_norm = layer_norm(self, encoder, "transform_norm")

    @property
    def vocabulary_size(self) -> int:
        """V: number of tokens."""
        return self.encoder_config.vocabulary_size

    def build(self, features_shape=None):
        """Builds all parts."""
        shapes = text_shapes() if features_shape is None else features_shape
        gathered_shape = (None, None, self.encoder_config.hidden_dim)
        self.encoder.build(shapes)
        for part in (self.masked_norm, self.transform, self.transform_norm):
            if part is not None:
                part.build(gathered_shape)
        # float32 whatever the policy, like the logits.
        options = {"dtype": "float32", "initializer": "zeros", "autocast": False}
        self.bias = self.add_weight(name="bias", shape=(self.vocabulary_size,), **options)

    def call(self, features, training=None):
        """See the class."""
        hidden = gathered(self.encoder(features, training=training), features[MASK_POSITIONS])
        hidden = hidden if self.masked_norm is None else self.masked_norm(hidden)
        hidden = ACTIVATIONS[self.encoder_config.activation](self.transform(hidden))
        table = ops.cast(self.encoder.embedding.tokens.embeddings, self.compute_dtype)
        logits = ops.matmul(self.transform_norm(hidden), ops.transpose(table))
        return ops.cast(logits, "float32") + self.bias

    def probabilities(self, logits):
        """Probabilities float32 [B, M, V] from logits [B, M, V]."""
        return ops.softmax(logits, axis=-1)

    def decode(self, logits):
        """The most probable token at each position, int32 [B, M], from logits [B, M, V], in the graph."""
        return ops.cast(ops.argmax(logits, axis=-1), "int32")

    def get_config(self):
        """The constructor's arguments."""
        return {**super().get_config(), "encoder": dataclasses.asdict(self.encoder_config)}


def gathered(vectors, positions):
    """The vectors at positions int32 [B, M] in [0, T) of each row: float [B, M, D] from float [B, T, D]."""
    rows, length, width = ops.shape(vectors)[0], ops.shape(vectors)[1], vectors.shape[-1]
    first = ops.expand_dims(ops.arange(rows, dtype="int32") * length, 1)
    return ops.take(ops.reshape(vectors, (-1, width)), positions + first, axis=0)
