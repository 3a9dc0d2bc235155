"""Transformer blocks: attention and feed-forward network, each with residual connection and layer normalization."""

import math

import keras
from keras import ops

from kmha.layers.attention import MultiHeadAttention
from kmha.layers.configurable_layer import ConfigurableLayer
from kmha.layers.dropout import Dropout
from kmha.layers.eight_bit import form_of, project, record_inputs
from kmha.layers.normalization import LayerNormalization

_ROOT_HALF = math.sqrt(0.5)


@ops.custom_gradient
def gelu_in_training(x):
    """Exact GELU x Φ(x), equal to `keras.activations.gelu`; both passes need half the memory traffic.

    With z = x / √2 and k = (1 + erf z) / √2, the value is z k and the derivative k / √2 + z exp(-z²) / √π: only z and k
    are stored. Outside of training Keras' GELU is used, because converters recognize its operations.

    Args:
        x: float32 of any shape.

    Source: Hendrycks and Gimpel 2016, arXiv:1606.08415.
    """
    z = x * _ROOT_HALF
    k = (1.0 + ops.erf(z)) * _ROOT_HALF

    def backward(*args, upstream=None):
        upstream = args[-1] if upstream is None else upstream
        return upstream * (k * _ROOT_HALF + z * ops.exp(-ops.square(z)) * (1 / math.sqrt(math.pi)))

    return z * k, backward


ACTIVATIONS = {
    "relu": keras.activations.relu,
    "gelu": lambda x: keras.activations.gelu(x, approximate=False),
    "gelu_tanh": lambda x: keras.activations.gelu(x, approximate=True),
}


@keras.saving.register_keras_serializable(package="kmha")
class FeedForward(ConfigurableLayer):
    """The same two-layer network at each position.

    activation(x W_1 + b_1) W_2 + b_2.

    Args:
        intermediate_dim: Inner size.
        activation: "relu", "gelu" (exact) or "gelu_tanh" (approximation).
        kernel_initializer: Initializer of both kernels.

    Call:
        inputs: float [B, T, D].
        Returns float [B, T, D].

    Raises:
        ValueError: The activation is not one of the three.
    Source: Vaswani et al. 2017, §3.3, arXiv:1706.03762; GELU: Hendrycks and Gimpel 2016, arXiv:1606.08415.
    """

    def __init__(
        self, intermediate_dim: int, activation: str = "gelu", kernel_initializer="glorot_uniform", **kwargs
    ):
        super().__init__(**kwargs)
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {sorted(ACTIVATIONS)}, got {activation!r}")
        self.supports_masking = True
        self.intermediate_dim = intermediate_dim
        self.activation = activation
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.expand = self._dense(intermediate_dim, "expand")

    def _dense(self, units: int, name: str):
        # An initializer instance repeats its values, so each kernel gets its own.
        initializer = self.kernel_initializer.clone()
        return keras.layers.Dense(units, kernel_initializer=initializer, name=name, dtype=self.dtype_policy)

    def build(self, inputs_shape):
        """Creates both kernels; the output size is the input size."""
        self.expand.build(inputs_shape)
        self.contract = self._dense(inputs_shape[-1], "contract")
        self.contract.build((*inputs_shape[:-1], self.intermediate_dim))

    def call(self, inputs, training=None):
        """See the class."""
        # Products of two axes: those of three have more operations, for shapes.
        shape, inputs = ops.shape(inputs), ops.reshape(inputs, (-1, inputs.shape[-1]))
        return ops.reshape(self._transformed(inputs, training), shape)

    def _transformed(self, inputs, training):
        activate = ACTIVATIONS[self.activation]
        form = form_of(self)
        if form is not None:
            hidden = activate(project(inputs, form.expand) + form.bias)
            return form.contracted(hidden) + self.contract.bias
        record_inputs(self.expand.kernel, inputs)
        expanded = self.expand(inputs)
        if training and self.activation == "gelu":
            activate = gelu_in_training
        # In float32 whatever the policy: more accurate, and on CPUs faster than 16 bits.
        active = activate(ops.cast(expanded, "float32"))
        record_inputs(self.contract.kernel, active)
        return self.contract(ops.cast(active, expanded.dtype))


class AttentionBlock(ConfigurableLayer):
    """Abstract base of the blocks: attention, then a feed-forward network.

    post-norm: x = norm(x + branch(x)); pre-norm: x = x + branch(norm(x)), for both branches.

    The arguments are those of `MultiHeadAttention` (head_dim is its key_dim) and of `kmha.config.EncoderConfig`; the
    initializer is for all kernels.

    Raises:
        ValueError: norm is neither "pre" nor "post".
    Source: Vaswani et al. 2017, §3.1, arXiv:1706.03762; pre-norm: Xiong et al. 2020, arXiv:2002.04745.
    """

    def __init__(
        self,
        num_heads: int,
        intermediate_dim: int,
        head_dim: int | None = None,
        norm: str = "post",
        norm_epsilon: float = 1e-12,
        activation: str = "gelu",
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        rotary: bool = False,
        kernel_initializer="glorot_uniform",
        window: int | None = None,
        num_globals: int = 0,
        longest: int | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if norm not in ("pre", "post"):
            raise ValueError(f'norm must be "pre" or "post", got {norm!r}')
        self.supports_masking = True
        self.num_heads, self.intermediate_dim, self.head_dim = num_heads, intermediate_dim, head_dim
        self.norm, self.norm_epsilon, self.activation = norm, norm_epsilon, activation
        self.dropout, self.attention_dropout, self.rotary = dropout, attention_dropout, rotary
        self.window, self.num_globals, self.longest = window, num_globals, longest
        self.kernel_initializer = initializer = keras.initializers.get(kernel_initializer)
        self.attention = MultiHeadAttention(
            num_heads,
            key_dim=head_dim,
            dropout=attention_dropout,
            rotary=rotary,
            kernel_initializer=initializer.clone(),
            window=window,
            num_globals=num_globals,
            longest=longest,
            name="attention",
            dtype=self.dtype_policy,
        )
        self.feed_forward = FeedForward(
            intermediate_dim, activation, initializer.clone(), name="feed_forward", dtype=self.dtype_policy
        )
        self.attention_norm = self._normalization("attention_norm", norm_epsilon)
        self.feed_forward_norm = self._normalization("feed_forward_norm", norm_epsilon)
        self.branch_dropout = Dropout(dropout, name="branch_dropout", dtype=self.dtype_policy)

    def _normalization(self, name: str, epsilon: float):
        return LayerNormalization(epsilon=epsilon, name=name, dtype=self.dtype_policy)

    def _build(self, inputs_shape):
        """Builds all parts for [B, T, D]."""
        for part in (self.attention, self.feed_forward, self.attention_norm, self.feed_forward_norm):
            part.build(inputs_shape)
        self.branch_dropout.build(inputs_shape)

    def _blend(self, inputs, context, return_attention_weights, training, **masks):
        """The output [B, T, D], and on request the attention weights; context None: self-attention.

        The masks are arguments of `MultiHeadAttention`.
        """
        pre = self.norm == "pre"
        if pre and context is not None:
            context = self.attention_norm(context, training=training)
        mixed = self.attention(
            self.attention_norm(inputs, training=training) if pre else inputs,
            context,
            **masks,
            return_attention_weights=return_attention_weights,
            training=training,
        )
        mixed, weights = mixed if return_attention_weights else (mixed, None)
        x = inputs + self.branch_dropout(mixed, training=training)
        x = x if pre else self.attention_norm(x, training=training)
        branch = self.feed_forward(
            self.feed_forward_norm(x, training=training) if pre else x, training=training
        )
        x = x + self.branch_dropout(branch, training=training)
        x = x if pre else self.feed_forward_norm(x, training=training)
        return (x, weights) if return_attention_weights else x


@keras.saving.register_keras_serializable(package="kmha")
class EncoderBlock(AttentionBlock):
    """A block with self-attention; for the arguments see `AttentionBlock`.

    Call:
        inputs: float [B, T, D].
        attention_mask: int32 or bool [B, T, T] or [B, T]; 1 = attend.
        return_attention_weights: Whether to return the weights too.
        use_causal_mask: Whether position t attends only to positions 0 … t.
        inputs_mask: int32 or bool [B, T]; 1 = a real position: no position attends to the others. Keras fills it, or
            `mask` in a call with the inputs alone, from the inputs.
        Returns float [B, T, D], and with the weights also float32 [B, N, T, T].
    """

    def build(self, inputs_shape):
        """Builds all parts for [B, T, D]."""
        self._build(inputs_shape)

    def call(
        self,
        inputs,
        attention_mask=None,
        return_attention_weights=False,
        training=None,
        use_causal_mask=False,
        inputs_mask=None,
        mask=None,
    ):
        """See the class."""
        return self._blend(
            inputs,
            None,
            return_attention_weights,
            training,
            query_mask=mask if inputs_mask is None else inputs_mask,
            attention_mask=attention_mask,
            use_causal_mask=use_causal_mask,
        )


@keras.saving.register_keras_serializable(package="kmha")
class CrossAttentionBlock(AttentionBlock):
    """A block with cross-attention: queries from one text, keys and values from another.

    For the arguments see `AttentionBlock`.

    Call:
        inputs: float [B, T, D].
        context: float [B, S, D].
        attention_mask: int32 or bool [B, T, S] or [B, S]; 1 = attend.
        return_attention_weights: Whether to return the weights too.
        inputs_mask: int32 or bool [B, T]; 1 = a real position.
        context_mask: int32 or bool [B, S]; 1 = attend. Keras fills both from its tensors.
        Returns float [B, T, D], and with the weights also float32 [B, N, T, S]. For fully masked rows
        attention adds zeros.

    Raises:
        ValueError: Context and inputs have vectors of different sizes.
    Source: Vaswani et al. 2017, §3.2.3, arXiv:1706.03762.
    """

    def build(self, inputs_shape, context_shape=None):
        """Builds all parts for [B, T, D]; the context has the same D."""
        if context_shape is not None and context_shape[-1] != inputs_shape[-1]:
            raise ValueError(
                f"the context's vectors must have the size of the inputs', {inputs_shape[-1]}, got"
                f" {context_shape[-1]}"
            )
        self._build(inputs_shape)

    def call(
        self,
        inputs,
        context,
        attention_mask=None,
        return_attention_weights=False,
        training=None,
        inputs_mask=None,
        context_mask=None,
    ):
        """See the class."""
        return self._blend(
            inputs,
            context,
            return_attention_weights,
            training,
            query_mask=inputs_mask,
            value_mask=context_mask,
            attention_mask=attention_mask,
        )
