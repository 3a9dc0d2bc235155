"""Dropout: its rate, its gradient, its random numbers."""

import numpy as np
import pytest
from keras import ops

from kmha.layers.dropout import Dropout, block_seed, drop_values, keep_mask, keep_rate
from tests.layer_checks import BACKEND, gradients, seed_of, to_numpy

SHAPES = [(40_000,), (201, 200), (199, 201), (2, 2, 101, 101), (3, 5, 51, 53)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_masks_have_the_exact_rate_and_differ_by_block(rate, shape):
    first, again, other = (
        to_numpy(keep_mask(shape, rate, block_seed(seed_of(1, 2), number))) for number in (7, 7, 8)
    )
    np.testing.assert_array_equal(first, again)
    assert first.shape == shape
    assert set(np.unique(first)) == {0, 1}
    assert abs(first.mean() - (1 - rate)) < 4 * np.sqrt(rate * (1 - rate) / first.size)
    # Two independent masks agree in this share; so do values of one mask.
    agreed = rate**2 + (1 - rate) ** 2
    flat = first.ravel()
    half, even = len(flat) // 2, len(flat) // 2 * 2
    pairs = (first, other), (flat[:even:2], flat[1:even:2]), (flat[:half], flat[half : 2 * half])
    # The halves of the last axis share integers.
    size = shape[-1]
    shared = first[..., : size // 2], first[..., (size + 1) // 2 :]
    for left, right in (*pairs, (flat[:-1], flat[1:]), shared):
        assert abs((left == right).mean() - agreed) < 5 * np.sqrt(agreed * (1 - agreed) / left.size)
    assert abs(keep_rate(rate) - (1 - rate)) < 2**-16


@pytest.mark.skipif(BACKEND == "jax", reason="sizes are always known there")
def test_masks_do_not_depend_on_which_sizes_are_known():
    import tensorflow as tf

    shape = 2, 4, 6, 7
    expected = to_numpy(keep_mask(shape, 0.5, seed_of(1, 2)))
    for known in ([None, 4, 6, 7], [None, 4, None, None], [None] * 4):

        @tf.function(input_signature=[tf.TensorSpec(known)])
        def mask_of(x):
            return keep_mask(ops.shape(x), 0.5, seed_of(1, 2))

        np.testing.assert_array_equal(to_numpy(mask_of(np.zeros(shape, "float32"))), expected)


def test_values_that_stay_are_divided_by_their_share_and_have_its_gradient():
    inputs, upstream = np.random.default_rng(3).normal(size=(2, 30, 40)).astype("float32")
    found = to_numpy(drop_values(inputs, 0.25, seed_of(3, 4)))
    factors = to_numpy(keep_mask((30, 40), 0.25, seed_of(3, 4))) / 0.75
    assert 0 < (factors == 0).mean() < 0.5
    np.testing.assert_allclose(found, inputs * factors, rtol=1e-6)
    (gradient,) = gradients(lambda x: ops.sum(drop_values(x, 0.25, seed_of(3, 4)) * upstream), inputs)
    np.testing.assert_allclose(gradient, upstream * factors, rtol=1e-6)


def test_the_layer_drops_other_values_in_each_call_and_none_outside_of_training():
    layer, inputs = Dropout(0.5, seed=1), np.ones((20, 30), "float32")
    first, second = (to_numpy(layer(inputs, training=True)) for _ in range(2))
    assert (first != second).any()
    assert set(np.unique(first)) == {0, 2}
    np.testing.assert_array_equal(to_numpy(layer(inputs)), inputs)


@pytest.mark.parametrize(("rate", "expected"), [(1e-6, 1.0), (1 - 1e-6, 0.0), (1.0, 0.0)])
def test_rates_next_to_0_and_1_are_rounded(rate, expected):
    found = to_numpy(Dropout(rate)(np.ones((4, 6), "float32"), training=True))
    np.testing.assert_array_equal(found, np.full((4, 6), expected, "float32"))
