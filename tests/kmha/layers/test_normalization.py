"""Layer normalization: the same values and gradients as Keras' layer."""

import keras
import numpy as np
import pytest
from keras import ops

from kmha.layers.normalization import LayerNormalization, normalize_in_training
from tests.layer_checks import gradients, to_numpy

GENERATOR = np.random.default_rng(4)
D = 16
GAIN, BIAS = GENERATOR.normal(size=(2, D)).astype("float32")


def _pair(**options):
    layers = (
        LayerNormalization(epsilon=1e-6, **options),
        keras.layers.LayerNormalization(epsilon=1e-6, **options),
    )
    for layer in layers:
        layer.build((None, D))
        layer.set_weights([GAIN, BIAS])
    return layers


@pytest.mark.parametrize("shape", [(5, D), (3, 4, D), (2, 3, 2, D)])
@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_values_in_training_equal_those_of_keras(shape, offset):
    inputs = (GENERATOR.normal(size=shape) + offset).astype("float32")
    own, reference = _pair()
    expected = to_numpy(reference(inputs))
    np.testing.assert_array_equal(to_numpy(own(inputs)), expected)
    np.testing.assert_allclose(to_numpy(own(inputs, training=True)), expected, atol=1e-4 if offset else 2e-6)


@pytest.mark.parametrize("shape", [(5, D), (3, 4, D)])
def test_gradients_equal_the_derived_ones(shape):
    inputs, upstream = GENERATOR.normal(size=(2, *shape)).astype("float32")

    def derived(x, gain, bias):
        centered = x - ops.mean(x, axis=-1, keepdims=True)
        variance = ops.mean(ops.square(centered), axis=-1, keepdims=True)
        return ops.sum((centered / ops.sqrt(variance + 1e-3) * gain + bias) * upstream)

    def given(x, gain, bias):
        return ops.sum(normalize_in_training(x, gain, bias, 1e-3) * upstream)

    found, expected = (gradients(function, inputs, GAIN, BIAS) for function in (given, derived))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_rows_of_equal_values_have_finite_gradients():
    inputs, upstream = np.full((2, D), 3.0, "float32"), GENERATOR.normal(size=(2, D)).astype("float32")
    for gradient in gradients(
        lambda x: ops.sum(normalize_in_training(x, GAIN, BIAS, 1e-12) * upstream), inputs
    ):
        assert np.isfinite(gradient).all()


def test_training_in_16_bits_normalizes_in_float32():
    own, reference = _pair(dtype="mixed_bfloat16")
    inputs = (GENERATOR.normal(size=(3, D)) + 8).astype("float32")
    found = own(inputs, training=True)
    assert keras.backend.standardize_dtype(found.dtype) == "bfloat16"
    expected = ops.cast(reference(inputs), "float32")
    np.testing.assert_allclose(to_numpy(ops.cast(found, "float32")), to_numpy(expected), atol=0.02)
