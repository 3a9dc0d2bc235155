"""Comparing vectors, by hand."""

import keras
import numpy as np
import pytest
from keras import ops

from kmha.layers.comparison import Standardise, comparison_features, unit_vectors
from tests.layer_checks import gradients, run, to_numpy

A, B = np.array([[1.0, -2.0], [3.0, 0.5]], "float32"), np.array([[4.0, -2.0], [-1.0, 2.0]], "float32")


def test_both_vectors_their_distance_and_their_product():
    found = [to_numpy(each) for each in run(comparison_features, A, B)]
    expected = [A, B, [[3, 0], [4, 1.5]], [[4, 4], [-3, 1]]]
    np.testing.assert_array_equal(found, expected)


def test_symmetric_is_the_same_both_ways():
    there, back = (
        np.stack([to_numpy(x) for x in comparison_features(*pair, symmetric=True)])
        for pair in ((A, B), (B, A))
    )
    np.testing.assert_array_equal(there, back)
    np.testing.assert_array_equal(there, [[[5, -4], [2, 2.5]], [[3, 0], [4, 1.5]], [[4, 4], [-3, 1]]])


def test_unit_vectors_have_length_one_over_all_parts():
    np.testing.assert_allclose(to_numpy(unit_vectors([A[:1] * 1e6])), A[:1] / np.sqrt(5), rtol=1e-6)
    joined = to_numpy(unit_vectors([A, B]))
    expected = np.concatenate([A, B], axis=1)
    np.testing.assert_allclose(joined, expected / np.linalg.norm(expected, axis=1, keepdims=True), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_zeros_stay_zeros_in_every_precision(dtype):
    found = unit_vectors([ops.cast(np.array([[0, 0], [300, 400]]), dtype)])
    assert str(to_numpy(found).dtype) == "float32"
    # 400 squared overflows float16.
    np.testing.assert_allclose(to_numpy(found), [[0, 0], [0.6, 0.8]], atol=1e-6)


def test_gradients_of_zeros_and_of_equal_vectors_are_finite():
    zeros = np.zeros((1, 2), "float32")
    for a, b in ((zeros, zeros), (A, A)):
        found = gradients(
            lambda x, y: ops.sum(unit_vectors(comparison_features(x, y)) * unit_vectors([x, y, x, y])), a, b
        )
        assert all(np.isfinite(each).all() for each in found)


def test_standardised_numbers_have_mean_zero_and_spread_one():
    inputs = np.random.default_rng(0).normal(3, [0.01, 2, 40], (50, 3)).astype("float32")
    layer = Standardise()
    np.testing.assert_array_equal(to_numpy(layer(inputs)), inputs)
    layer.assign(inputs.mean(axis=0), 1 / inputs.std(axis=0))
    found = to_numpy(layer(inputs))
    np.testing.assert_allclose(found.mean(axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(found.std(axis=0), 1, rtol=1e-4)


def test_mean_and_scale_by_hand_travel_with_the_file_and_are_not_trained(tmp_path):
    symbol = keras.Input((2,))
    layer = Standardise()
    model = keras.Model(symbol, layer(symbol))
    layer.assign([1.0, -2.0], [2.0, 0.5])
    assert not layer.trainable_weights
    model.save(tmp_path / "scale.keras")
    again = keras.saving.load_model(tmp_path / "scale.keras", safe_mode=True)
    np.testing.assert_array_equal(to_numpy(again(A)), [[0, 0], [4, 1.25]])
