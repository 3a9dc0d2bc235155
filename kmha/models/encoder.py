"""The Transformer encoder: from features to one vector for each position."""

import dataclasses
from typing import Any

import keras
from keras import ops

from kmha.config import EncoderConfig
from kmha.features import PADDING_MASK, SEGMENT_IDS, TOKEN_IDS
from kmha.layers.embedding import TextEmbedding, TokenDropout
from kmha.layers.encoder_block import EncoderBlock
from kmha.models.traces import Trace, record_trace, weights_requested

# [UNK], [CLS], [SEP] and [MASK] have consecutive ids; the ids after them are words.
SPECIAL_FROM_UNKNOWN = 4


def block_options(config: EncoderConfig, size: tuple[int, int]) -> dict[str, Any]:
    """Arguments of `AttentionBlock` from the configuration of the encoder.

    Args:
        config: Configuration of the encoder.
        size: Heads and inner size of the block.
    """
    names = ("norm", "norm_epsilon", "activation", "dropout", "attention_dropout")
    own = {"num_heads": size[0], "intermediate_dim": size[1], "head_dim": config.head_size}
    own["longest"] = config.max_length
    return own | {name: getattr(config, name) for name in names}


@keras.saving.register_keras_serializable(package="kmha")
class TransformerEncoder(keras.layers.Layer):
    """Token embedding and a stack of encoder blocks; BERT is one configuration.

    Args:
        config: Shape and regularization.
        final_norm: Whether a pre-norm encoder normalizes its output; a model may do so after pooling instead.

    Call:
        features: token_ids, padding_mask and optionally segment_ids, int32 [B, T] each.
        return_attention_weights: Whether to return the weights of every block too.
        Returns float [B, T, D], and with the weights also a list of float32 [B, N, T, T].

    Raises:
        ValueError: T is known and larger than config.max_length.
    Source: Vaswani et al. 2017, arXiv:1706.03762; Devlin et al. 2019, arXiv:1810.04805.
    """

    def __init__(self, config: EncoderConfig, final_norm: bool = True, **kwargs):
        super().__init__(**kwargs)
        self.config = config
        self.final_norm = final_norm
        self.token_dropout = TokenDropout(
            config.token_dropout,
            replacement=config.unknown_id,
            first_id=config.unknown_id + SPECIAL_FROM_UNKNOWN,
            name="token_dropout",
            dtype=self.dtype_policy,
        )
        self.embedding = TextEmbedding(
            config.vocabulary_size,
            config.hidden_dim,
            config.max_length,
            config.num_segments,
            config.positions,
            config.ngram_buckets,
            config.ngram_dim,
            config.ngram_orders,
            ngram_dropout=config.dropout,
            name="embedding",
            dtype=self.dtype_policy,
        )
        # Post-norm normalizes the input of the first block, pre-norm the output of the last block.
        self.norm = (
            keras.layers.LayerNormalization(epsilon=config.norm_epsilon, name="norm", dtype=self.dtype_policy)
            if config.norm == "post" or final_norm
            else None
        )
        self.embedding_dropout = keras.layers.Dropout(
            config.dropout, name="embedding_dropout", dtype=self.dtype_policy
        )
        self.blocks = [self._block(i) for i in range(config.num_layers)]

    def _block(self, index: int) -> EncoderBlock:
        config = self.config
        return EncoderBlock(
            **block_options(config, config.layer_size(index)),
            rotary=config.positions == "rotary",
            window=config.attention_window,
            num_globals=config.attention_globals,
            kernel_initializer=keras.initializers.TruncatedNormal(stddev=0.02)
            if config.norm == "post"
            else "glorot_uniform",
            name=f"block_{index}",
            dtype=self.dtype_policy,
        )

    def build(self, features_shape):
        """Builds all parts for token ids [B, T]."""
        ids_shape = features_shape[TOKEN_IDS]
        hidden_shape = (*ids_shape, self.config.hidden_dim)
        self.token_dropout.build(ids_shape)
        self.embedding.build(ids_shape)
        self.embedding_dropout.build(hidden_shape)
        for part in (*self.blocks, self.norm):
            if part is not None:
                part.build(hidden_shape)

    def call(self, features, return_attention_weights=False, training=None):
        """See the class."""
        x = self.embed(features[TOKEN_IDS], features.get(SEGMENT_IDS), training=training)
        x, weights = self.attend(x, features[PADDING_MASK], return_attention_weights, training)
        return (x, weights) if return_attention_weights else x

    def embed(self, token_ids, segment_ids=None, first_position=None, training=None):
        """The input of the blocks, float [B, T, D].

        Args:
            token_ids: int32 [B, T].
            segment_ids: int32 [B, T]; None: all 0.
            first_position: int32 [B], position of the first token of each row; None: 0.
            training: Whether to apply dropout.
        """
        token_ids = self.token_dropout(token_ids, training=training)
        x = self.embedding(
            token_ids,
            segment_ids,
            token_keep=1.0 - self.token_dropout.rate if training else 1.0,
            first_position=first_position,
            training=training,
        )
        x = self.norm(x) if self.norm is not None and self.config.norm == "post" else x
        return self.embedding_dropout(x, training=training)

    def attend(self, x, padding_mask, return_attention_weights=False, training=None):
        """Passes embedded tokens through the blocks.

        Args:
            x: float [B, T, D], from `embed`.
            padding_mask: int32 [B, T]; 1 = a real token.
            return_attention_weights: Whether to return attention weights, which need much memory for long texts.
            training: Whether to apply dropout.

        Returns:
            float [B, T, D], zeros where the mask is 0, and the attention weights of every block, a list of float32
            [B, N, T, T], empty if neither the caller nor `traced` requests them.
        """
        with_weights = return_attention_weights or weights_requested()
        states, all_weights = [x], []
        for block in self.blocks:
            x = block(
                x, attention_mask=padding_mask, return_attention_weights=with_weights, training=training
            )
            if with_weights:
                x, weights = x
                all_weights.append(weights)
            states.append(x)
        record_trace(Trace(self, states, all_weights, padding_mask))
        x = self.norm(x) if self.config.norm == "pre" and self.norm is not None else x
        return x * ops.cast(ops.expand_dims(padding_mask, -1), x.dtype), all_weights

    def get_config(self):
        """The constructor's arguments."""
        config = {"config": dataclasses.asdict(self.config), "final_norm": self.final_norm}
        return {**super().get_config(), **config}

    @classmethod
    def from_config(cls, config):
        """Creates the layer from `get_config`."""
        return cls(**{**config, "config": EncoderConfig(**config["config"])})
