"""Comparison of two vectors: features for a head, standardized features, and unit vectors for cosines."""

import keras
import numpy as np
from keras import ops


def comparison_features(a, b, symmetric: bool = False):
    """Features from which a head decides how similar two vectors are.

    Args:
        a: float [B, D].
        b: float [B, D].
        symmetric: Whether exchanging a and b changes nothing.

    Returns:
        float [B, D] each: a, b, |a - b|, a · b, or a + b, |a - b|, a · b where symmetric.

    Source: Mou et al. 2016, arXiv:1512.08422.
    """
    return [*([a + b] if symmetric else [a, b]), ops.abs(a - b), a * b]


def unit_vectors(vectors):
    """Concatenates vectors float [B, …] and scales the result to length 1: float32 [B, D]; zeros stay zeros."""
    joined = ops.cast(ops.concatenate(vectors, axis=-1) if len(vectors) > 1 else vectors[0], "float32")
    return joined * ops.rsqrt(ops.maximum(ops.sum(joined * joined, axis=-1, keepdims=True), 1e-12))


@keras.saving.register_keras_serializable(package="kmha")
class Standardise(keras.layers.Layer):
    """Standardizes features: (inputs - mean) · scale, with mean and scale set before training and then fixed.

    Call:
        inputs: float [B, D].
        Returns float [B, D]; the inputs until `assign` is called.
    """

    def build(self, inputs_shape):
        """Creates mean and scale."""
        shape = (inputs_shape[-1],)
        self.mean = self.add_weight(name="mean", shape=shape, initializer="zeros", trainable=False)
        self.scale = self.add_weight(name="scale", shape=shape, initializer="ones", trainable=False)

    def assign(self, mean, scale) -> None:
        """Sets mean and scale, float [D] each."""
        self.mean.assign(np.asarray(mean, np.float32))
        self.scale.assign(np.asarray(scale, np.float32))

    def call(self, inputs):
        """See the class."""
        return (inputs - self.mean) * self.scale
