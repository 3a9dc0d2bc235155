"""The position-wise feed-forward network of a Transformer block."""

import math

import keras
from keras import ops

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
class FeedForward(keras.layers.Layer):
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
        self.intermediate_dim = intermediate_dim
        self.activation = activation
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.expand = keras.layers.Dense(
            intermediate_dim, kernel_initializer=self._initializer(), name="expand", dtype=self.dtype_policy
        )

    def _initializer(self):
        # An initializer instance repeats its values, so each kernel gets its own.
        return self.kernel_initializer.clone()

    def build(self, inputs_shape):
        """Creates both kernels; the output size is the input size."""
        self.expand.build(inputs_shape)
        self.contract = keras.layers.Dense(
            inputs_shape[-1], kernel_initializer=self._initializer(), name="contract", dtype=self.dtype_policy
        )
        self.contract.build((*inputs_shape[:-1], self.intermediate_dim))

    def call(self, inputs, training=None):
        """See the class."""
        expanded = self.expand(inputs)
        activate = ACTIVATIONS[self.activation]
        if training and self.activation == "gelu":
            activate = gelu_in_training
        # In float32 whatever the policy: more accurate, and on CPUs faster than 16 bits.
        active = activate(ops.cast(expanded, "float32"))
        return self.contract(ops.cast(active, expanded.dtype))

    def get_config(self):
        """The constructor's arguments."""
        return {
            **super().get_config(),
            "intermediate_dim": self.intermediate_dim,
            "activation": self.activation,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }
