"""Positions: sinusoids compared with the formula, rotation by its properties."""

import math

import keras
import numpy as np
import pytest
from keras import ops

from kmha.layers.positions import PositionEmbedding, rotate, sinusoids
from tests.layer_checks import run, to_numpy

LENGTH, DIM = 9, 8
GENERATOR = np.random.default_rng(6)


@pytest.mark.parametrize("dim", [8, 6])
def test_sinusoids_equal_the_formula(dim):
    expected = np.empty((LENGTH, dim))
    for position in range(LENGTH):
        for i in range(dim // 2):
            angle = position / 10_000 ** (2 * i / dim)
            expected[position, 2 * i : 2 * i + 2] = math.sin(angle), math.cos(angle)
    np.testing.assert_allclose(sinusoids(LENGTH, dim), expected, atol=1e-6)


def test_sinusoids_of_an_odd_size_leave_the_last_cosine_out():
    np.testing.assert_array_equal(sinusoids(LENGTH, 7), sinusoids(LENGTH, 8)[:, :7])


def test_rotated_products_depend_on_distances_only():
    query, key = (
        np.tile(GENERATOR.normal(size=(1, 1, 1, DIM)).astype("float32"), (1, 1, LENGTH, 1)) for _ in "qk"
    )
    scores = to_numpy(ops.einsum("bnth,bnsh->bnts", rotate(query), rotate(key)))[0, 0]
    for distance in range(-LENGTH + 1, LENGTH):
        same_distance = np.diagonal(scores, distance)
        np.testing.assert_allclose(same_distance, same_distance[0], atol=1e-5)
    assert np.ptp(scores[0]) > 0.1


def test_rotation_retains_norms_and_the_first_position():
    heads = GENERATOR.normal(size=(2, 3, LENGTH, DIM)).astype("float32")
    rotated = to_numpy(rotate(heads))
    np.testing.assert_allclose(np.linalg.norm(rotated, axis=-1), np.linalg.norm(heads, axis=-1), rtol=1e-5)
    np.testing.assert_array_equal(rotated[:, :, 0], heads[:, :, 0])


def test_rotation_equals_the_rotation_of_complex_numbers():
    heads = GENERATOR.normal(size=(1, 1, LENGTH, DIM))
    half = DIM // 2
    numbers = heads[..., :half] + 1j * heads[..., half:]
    angles = np.arange(LENGTH)[:, None] / 10_000 ** (np.arange(half) / half)
    turned = numbers * np.exp(1j * angles)
    expected = np.concatenate([turned.real, turned.imag], axis=-1)
    np.testing.assert_allclose(to_numpy(rotate(heads.astype("float32"))), expected, atol=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rotation_of_far_positions_is_exact_in_half_precision(dtype):
    # bfloat16 cannot represent all positions above 256: angles must be computed in float32.
    heads = np.ones((1, 1, 1000, 4), "float32")
    exact = to_numpy(rotate(heads))[0, 0, -1]
    np.testing.assert_allclose(to_numpy(rotate(ops.cast(heads, dtype)))[0, 0, -1], exact, atol=0.02)


@pytest.mark.parametrize("learned", [True, False])
def test_each_position_adds_its_own_vector(learned):
    layer = PositionEmbedding(LENGTH, learned)
    inputs = np.zeros((2, 5, DIM), "float32")
    added = to_numpy(layer(inputs))
    table = to_numpy(layer.table)
    assert len(layer.trainable_weights) == int(learned)
    np.testing.assert_array_equal(added, np.stack([table[:5]] * 2))
    assert len(np.unique(table, axis=0)) == LENGTH


@pytest.mark.parametrize("learned", [True, False])
def test_rows_may_start_anywhere_in_the_table(learned):
    layer = PositionEmbedding(LENGTH, learned)
    inputs = GENERATOR.normal(size=(3, 4, DIM)).astype("float32")
    layer.build(inputs.shape)
    found = to_numpy(run(layer, inputs, np.array([0, 3, LENGTH - 4], "int32")))
    table = to_numpy(layer.table)
    expected = inputs + np.stack([table[:4], table[3:7], table[-4:]])
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(found[0], to_numpy(layer(inputs))[0])


def test_too_long_is_rejected_with_both_numbers():
    with pytest.raises(ValueError, match="at most max_length 9, got 10"):
        PositionEmbedding(LENGTH)(np.zeros((1, LENGTH + 1, DIM), "float32"))
    with pytest.raises(ValueError, match="at most max_length 9, got 10"):
        PositionEmbedding(LENGTH)(keras.Input((LENGTH + 1, DIM)))
