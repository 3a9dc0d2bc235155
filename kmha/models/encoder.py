"""The Transformer encoder: from features to one vector for each position."""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import keras
from keras import ops

from kmha.config import EncoderConfig
from kmha.features import PADDING_MASK, POSITION_IDS, SEGMENT_IDS, TOKEN_IDS
from kmha.layers.comparison import unit_vectors
from kmha.layers.configurable_layer import ConfigurableLayer
from kmha.layers.dropout import Dropout
from kmha.layers.embedding import TextEmbedding, TokenDropout
from kmha.layers.encoder_block import EncoderBlock
from kmha.layers.initial_values import initial, normal, zeros_at_first
from kmha.layers.normalization import LayerNormalization
from kmha.layers.pooling import mean_pool


def copy_of(model, *left_out: str, **changes):
    """A copy of a model with the same weights, but with other arguments of its constructor.

    `left_out` are names of layers whose weights are those of a new model; a layer may be None.
    """
    with zeros_at_first():
        copy = type(model).from_config({**model.get_config(), **changes})
        copy.build()
    for target, weight in zip(*(_weights_without(each, left_out) for each in (copy, model)), strict=True):
        target.assign(ops.convert_to_numpy(weight))
    return copy


def _weights_without(model, names) -> list:
    layers = [layer for layer in (getattr(model, name) for name in names) if layer is not None]
    left_out = {id(weight) for layer in layers for weight in layer.weights}
    return [weight for weight in model.weights if id(weight) not in left_out]


class Trace(NamedTuple):
    """One pass of a sequence through the blocks of an encoder."""

    encoder: Any
    states: list[Any]  # input of the first block and output of each block, float [B, T, D] each
    weights: list[Any]  # attention weights of each block, float32 [B, N, T, T]; empty unless requested
    mask: Any  # int32 [B, T]; 1 = a real token


class _Recording(NamedTuple):
    traces: list[Trace]
    weights: bool


_recording: contextvars.ContextVar[_Recording | None] = contextvars.ContextVar("recording", default=None)


@contextlib.contextmanager
def traced(weights: bool = False) -> Iterator[list[Trace]]:
    """Yields a list to which each pass through an encoder is appended, in the order of the calls.

    The tensors belong to the graph or the eager code in which the models are called. Attention weights, which are
    recorded on request, need much memory for long texts.
    """
    traces: list[Trace] = []
    token = _recording.set(_Recording(traces, weights))
    try:
        yield traces
    finally:
        _recording.reset(token)


def _call_directly(block, x, **options):
    return block(x, **options)


_call_block: contextvars.ContextVar[Callable[..., Any]] = contextvars.ContextVar(
    "call_block", default=_call_directly
)


@contextlib.contextmanager
def blocks_called_by(call: Callable[..., Any]) -> Iterator[None]:
    """Inside the block of code, encoders compute `call(block, x, **options)` in place of `block(x, **options)`."""
    token = _call_block.set(call)
    try:
        yield
    finally:
        _call_block.reset(token)


# [UNK], [CLS], [SEP] and [MASK] have consecutive ids; the ids after them are words.
SPECIAL_FROM_UNKNOWN = 4


def block_options(config: EncoderConfig, size: tuple[int, int]) -> dict[str, Any]:
    """Arguments of `AttentionBlock` from the configuration of the encoder and the block's heads and inner size."""
    names = ("norm", "norm_epsilon", "activation", "dropout", "attention_dropout")
    own = {"num_heads": size[0], "intermediate_dim": size[1], "head_dim": config.head_size}
    own["longest"] = config.max_length
    return own | {name: getattr(config, name) for name in names}


def layer_norm(owner: keras.layers.Layer, config: EncoderConfig, name: str) -> LayerNormalization:
    """A layer normalization with the owner's dtype policy."""
    return LayerNormalization(epsilon=config.norm_epsilon, name=name, dtype=owner.dtype_policy)


@keras.saving.register_keras_serializable(package="kmha")
class TransformerEncoder(ConfigurableLayer):
    """Token embedding and a stack of encoder blocks; BERT is one configuration.

    Args:
        config: Shape and regularization.
        final_norm: Whether a pre-norm encoder normalizes its output; a model may do so after pooling instead.

    Call:
        features: token_ids, padding_mask and optionally segment_ids, int32 [B, T] each; position_ids if the batch
            leaves out tokens of its texts.
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
        self.norm = layer_norm(self, config, "norm") if config.norm == "post" or final_norm else None
        self.embedding_dropout = Dropout(config.dropout, name="embedding_dropout", dtype=self.dtype_policy)
        self.blocks = [self._block(i) for i in range(config.num_layers)]

    def _block(self, index: int) -> EncoderBlock:
        config = self.config
        post = config.norm == "post"
        return EncoderBlock(
            **block_options(config, config.layer_size(index)),
            rotary=config.positions == "rotary",
            window=config.attention_window,
            num_globals=config.attention_globals,
            kernel_initializer=normal() if post else initial("glorot_uniform"),
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
        positions = {"position_ids": features.get(POSITION_IDS)}
        x = self.embed(features[TOKEN_IDS], features.get(SEGMENT_IDS), **positions, training=training)
        x, weights = self.attend(x, features[PADDING_MASK], return_attention_weights, training)
        return (x, weights) if return_attention_weights else x

    def embed(self, token_ids, segment_ids=None, first_position=None, position_ids=None, training=None):
        """The input of the blocks, float [B, T, D]; for the arguments see `TextEmbedding`.

        With `position_ids`, tokens were left out, so none is replaced.
        """
        keep = 1.0
        if training and position_ids is None:
            token_ids = self.token_dropout(token_ids, training=True)
            keep -= self.token_dropout.rate
        positions = {"first_position": first_position, "position_ids": position_ids}
        options = {"token_keep": keep, "training": training, **positions}
        x = self.embedding(token_ids, segment_ids, **options)
        x = self.norm(x, training=training) if self.norm is not None and self.config.norm == "post" else x
        return self.embedding_dropout(x, training=training)

    def attend(self, x, padding_mask, return_attention_weights=False, training=None):
        """Passes embedded tokens float [B, T, D] through the blocks.

        Returns:
            float [B, T, D], zeros where the mask int32 [B, T] is 0, and the attention weights of every block, a list of
            float32 [B, N, T, T], empty if neither the caller nor `traced` requests them.
        """
        recording = _recording.get()
        with_weights = return_attention_weights or (recording is not None and recording.weights)
        states, all_weights, call = [x], [], _call_block.get()
        for block in self.blocks:
            x = call(
                block,
                x,
                attention_mask=padding_mask,
                return_attention_weights=with_weights,
                training=training,
            )
            if with_weights:
                x, weights = x
                all_weights.append(weights)
            states.append(x)
        if recording is not None:
            recording.traces.append(Trace(self, states, all_weights, padding_mask))
        x = self.norm(x, training=training) if self.config.norm == "pre" and self.norm is not None else x
        return x * ops.cast(ops.expand_dims(padding_mask, -1), x.dtype), all_weights

    @classmethod
    def from_config(cls, config):
        """Creates the layer from `get_config`."""
        return cls(**{**config, "config": EncoderConfig(**config["config"])})


class SingleEncoder:
    """Mixin for a `keras.Model` with one encoder and one tokenization."""

    encoder_config: EncoderConfig
    encoder: TransformerEncoder

    @property
    def encoder_configs(self) -> dict[str, EncoderConfig]:
        """The configuration of the encoder."""
        return {"": self.encoder_config}

    @property
    def additions(self) -> list:
        """Kernels of additive inputs of the encoder; if they are zero, nothing is added."""
        return []

    def encoders_of(self, granularity: int) -> list[TransformerEncoder]:
        """The encoders of a granularity: a list of the only one."""
        return [self.encoder]

    def max_sequence_length(self, text_length: int) -> int:
        """Maximum sequence length in the encoder for texts of at most `text_length` tokens."""
        return text_length

    @property
    def vector_dim(self) -> int:
        """Size of a text's vector."""
        return self.encoder_config.hidden_dim

    def encode_tokens(self, features):
        """The vectors of tokens, float [B, T, D]."""
        return self.encoder(features, training=False)

    def pool_tokens(self, x, features):
        """The vector float [B, D] of a text, by default the mean of its tokens' vectors, float [B, T, D]."""
        return mean_pool(x, features[PADDING_MASK])

    def vectors(self, features):
        """Unit vectors float32 [B, D] of texts; for empty rows zeros, unless the model's pooling differs."""
        return unit_vectors([self.pool_tokens(self.encode_tokens(features), features)])

    @classmethod
    def from_config(cls, config, custom_objects=None):
        """Creates the model from `get_config`, in which the encoder's configuration is a dictionary."""
        return cls(**{**config, "encoder": EncoderConfig(**config["encoder"])})
