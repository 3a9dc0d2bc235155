"""The network on the overlap of two texts: its logits, extreme inputs, and factors."""

import numpy as np
import pytest

from kmha.errors import InputError
from kmha.layers.overlap_network import LARGEST_INPUT, OverlapNetwork
from tests.kmha.models.tiny_pairs import A, B, matcher, new_matcher, pair_features
from tests.layer_checks import compiled, to_numpy

F, P, C, U = 4, 3, 2, 5
GENERATOR = np.random.default_rng(0)
FEATURES = GENERATOR.normal(size=(6, F)).astype("float32")
PARTS = GENERATOR.normal(size=(6, P, C)).astype("float32")


@pytest.fixture
def layer() -> OverlapNetwork:
    layer = OverlapNetwork(C, F + P * C, U)
    layer.build()
    generator = np.random.default_rng(1)
    for weight in layer.weights:
        weight.assign(generator.normal(size=weight.shape))
    return layer


def test_logits_are_those_of_numpy(layer):
    inputs = np.hstack([FEATURES, PARTS.reshape(6, -1)])
    inputs = np.clip(
        (inputs - to_numpy(layer.mean)) * to_numpy(layer.input_scale), -LARGEST_INPUT, LARGEST_INPUT
    )
    hidden = np.maximum(inputs @ to_numpy(layer.hidden_kernel) + to_numpy(layer.hidden_bias), 0)
    expected = hidden @ to_numpy(layer.kernel) + to_numpy(layer.bias)
    expected += PARTS.sum(axis=1) * to_numpy(layer.factors)
    for name, call in {"eager": layer, **compiled(layer)}.items():
        np.testing.assert_allclose(to_numpy(call(FEATURES, PARTS)), expected, atol=1e-5, err_msg=name)


def test_extreme_features_are_limited(layer):
    layer.mean.assign(np.zeros(layer.mean.shape))
    largest = 1.01 * LARGEST_INPUT / np.abs(to_numpy(layer.input_scale)[:F])
    found = to_numpy(
        layer(np.stack([0.5 * largest, largest, 1e6 * largest]).astype("float32"), PARTS[:3] * 0)
    )
    np.testing.assert_allclose(found[1], found[2], atol=1e-5)
    assert np.abs(found[0] - found[1]).max() > 0.1


@pytest.mark.parametrize("factors", [0.0, 0.5, (2.0, 0.25)])
def test_factors_change_the_logits_alone(layer, factors):
    before = to_numpy(layer(FEATURES, PARTS))
    layer.scale(np.array(factors, "float32"))
    np.testing.assert_allclose(to_numpy(layer(FEATURES, PARTS)), before * np.array(factors), atol=1e-5)


def test_a_matcher_adds_the_network_and_scales_it_with_the_linear_model():
    model = new_matcher("cross, network")
    model.build()
    model.set_weights(matcher("cross, network").get_weights())
    features = pair_features(model, A, B)
    whole, overlap = (to_numpy(each(features)) for each in (model, model.overlap_logits))
    encoder = whole - overlap
    assert model.linear is not None
    linear = to_numpy(model.linear(*(features[name] for name in model.input_names)))
    assert np.abs(overlap - linear).min() > 1e-3
    model.scale_paths(0.5, 2.0, 1.0)
    np.testing.assert_allclose(to_numpy(model(features)), 0.5 * overlap + 2 * encoder + 1, atol=1e-4)


@pytest.mark.parametrize("name", ["cross, network", "cross, linear"])
def test_overlap_logits_are_computed_in_float32(name):
    model = new_matcher(name, dtype="mixed_bfloat16")
    model.build()
    model.set_weights(matcher(name).get_weights())
    # A model passes its policy to the calls of its layers.
    features = pair_features(model, A, B)
    assert np.isfinite(to_numpy(model(features))).all()
    expected = to_numpy(matcher(name).overlap_logits(features))
    np.testing.assert_allclose(to_numpy(model.overlap_logits(features)), expected, rtol=1e-6)


@pytest.mark.parametrize("name", ["cross, network", "joint, symmetric, linear", "cross, linear"])
def test_the_linear_model_and_its_network_can_be_left_out(name):
    model = matcher(name)
    features = pair_features(model, A, B)
    without = model.without_linear_path()
    assert without.linear is without.network is None
    expected = to_numpy(model(features)) - to_numpy(model.overlap_logits(features))
    np.testing.assert_allclose(to_numpy(without(features)), expected, atol=1e-4)


def test_a_network_needs_a_linear_model():
    with pytest.raises(InputError, match="overlap_units must be 0 without linear_rows, got 3"):
        new_matcher("cross", overlap_units=3)
