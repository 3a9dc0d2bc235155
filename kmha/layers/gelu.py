"""The Gaussian error linear unit with a backward pass of few operations."""

import math

from keras import ops

_ROOT_HALF = math.sqrt(0.5)


@ops.custom_gradient
def gelu_in_training(x):
    """GELU x Φ(x), exact, as `keras.activations.gelu` gives it; its passes read and write half as much.

    With z = x / √2 and k = (1 + erf z) / √2 it is z k, of slope k / √2 + z exp(-z²) / √π: what is left of both is z and
    k. Outside training use Keras': converters know its operations for GELU.

    Args:
        x: float32, of any shape.

    Source: Hendrycks and Gimpel 2016, arXiv:1606.08415.
    """
    z = x * _ROOT_HALF
    k = (1.0 + ops.erf(z)) * _ROOT_HALF

    def backward(*args, upstream=None):
        upstream = args[-1] if upstream is None else upstream
        return upstream * (k * _ROOT_HALF + z * ops.exp(-ops.square(z)) * (1 / math.sqrt(math.pi)))

    return z * k, backward
