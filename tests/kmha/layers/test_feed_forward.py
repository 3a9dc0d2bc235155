"""The position-wise network and its activations against their formulas."""

import numpy as np
import pytest
from keras import ops

from kmha.layers.feed_forward import ACTIVATIONS, FeedForward, gelu_in_training
from tests.kmha.layers.references import activate
from tests.layer_checks import fill_weights, gradients, to_numpy

INPUTS = np.random.default_rng(8).normal(size=(2, 3, 4)).astype("float32")


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_equal_their_formulas(name):
    values = np.linspace(-6, 6, 121, dtype="float32")
    np.testing.assert_allclose(to_numpy(ACTIVATIONS[name](values)), activate(name, values), atol=2e-6)


def test_gelu_in_training_equals_gelu_and_its_gradient():
    values = np.concatenate([np.linspace(-6, 6, 121), [-40.0, 40.0]]).astype("float32")
    upstream = np.random.default_rng(2).normal(size=values.shape).astype("float32")
    np.testing.assert_allclose(to_numpy(gelu_in_training(values)), activate("gelu", values), atol=2e-6)
    (found,) = gradients(lambda x: ops.sum(gelu_in_training(x) * upstream), values)
    exact = values.astype(np.float64)
    step = 1e-4
    slope = (activate("gelu", exact + step) - activate("gelu", exact - step)) / (2 * step)
    np.testing.assert_allclose(found, upstream * slope, atol=2e-6)


def test_only_exact_gelu_has_a_training_implementation():
    for name in ACTIVATIONS:
        layer = FeedForward(6, name)
        layer.build(INPUTS.shape)
        fill_weights(layer)
        found, learning = (to_numpy(layer(INPUTS, training=training)) for training in (False, True))
        np.testing.assert_allclose(learning, found, rtol=0, atol=2e-6 if name == "gelu" else 0)


def test_the_two_forms_of_gelu_differ():
    values = np.linspace(-3, 3, 61, dtype="float32")
    difference = to_numpy(ACTIVATIONS["gelu"](values)) - to_numpy(ACTIVATIONS["gelu_tanh"](values))
    assert 1e-4 < np.abs(difference).max() < 1e-3


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_equals_two_products(name):
    layer = FeedForward(6, name)
    layer.build(INPUTS.shape)
    fill_weights(layer)
    expand, expand_bias, contract, contract_bias = (w.astype(np.float64) for w in layer.get_weights())
    expected = activate(name, INPUTS @ expand + expand_bias) @ contract + contract_bias
    np.testing.assert_allclose(to_numpy(layer(INPUTS)), expected, atol=2e-6)


def test_kernels_start_from_different_random_numbers():
    layer = FeedForward(4)
    layer.build(INPUTS.shape)
    first, second = (to_numpy(dense.kernel).ravel() for dense in (layer.expand, layer.contract))
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.9


def test_an_unknown_activation_is_rejected():
    with pytest.raises(ValueError, match="'swish'"):
        FeedForward(4, "swish")
