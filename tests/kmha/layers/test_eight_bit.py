import numpy as np
import pytest

from kmha.layers.attention import MultiHeadAttention
from kmha.layers.eight_bit import (
    HiddenUnits,
    ScaledTable,
    SmoothKernel,
    forms_of_layers,
    outlier_rows,
    recorded_input_ranges,
    round_to_8_bits,
    smoothing_factors,
)
from kmha.layers.embedding import Table
from kmha.layers.encoder_block import FeedForward

RANDOM = np.random.default_rng(3)
# Rows and columns of very different size.
SIZES = np.float32(10.0) ** RANDOM.integers(-4, 4, 7)


def test_rows_are_rounded_to_half_a_step_of_their_own():
    table = RANDOM.normal(size=(7, 40)).astype("float32") * SIZES[:, None]
    values, scales = round_to_8_bits(table, axis=1)
    assert (values.dtype, scales.shape) == (np.int8, (7, 1))
    assert (np.abs(values * scales - table) <= 0.501 * np.abs(table).max(axis=1, keepdims=True) / 127).all()


def test_rows_of_zeros_stay_zeros():
    values, scales = round_to_8_bits(np.zeros((2, 3), "float32"), axis=1)
    assert not values.any()
    assert np.isfinite(scales).all()


@pytest.mark.parametrize("by_row", [True, False])
def test_a_table_looks_up_the_rounded_rows(by_row):
    layer, ids = Table(7, 40), np.array([[6, 0], [3, 3]], "int32")
    layer.build(None)
    table = RANDOM.normal(size=(7, 40)).astype("float32")
    values, scales = round_to_8_bits(table, axis=int(by_row))
    unit = float(scales.max()) / 2**20
    form = ScaledTable(values, scales[0])
    if by_row:
        form = ScaledTable(values, unit, np.rint(scales / unit).astype("int32"))
    layer.embeddings.assign(table)
    with forms_of_layers({id(layer): form}):
        found = np.asarray(layer(ids))
    assert 0 < np.abs(found - table[ids]).max() <= 0.51 * np.abs(table).max() / 127
    assert np.array_equal(np.asarray(layer(ids)), table[ids])


FACTORS = np.array([1, 0.01, 3, 1, 2, 0.5], np.float32)


def _smooth(kernel):
    factors = np.resize(FACTORS, len(kernel))
    return SmoothKernel(factors, kernel / factors[:, None])


@pytest.mark.parametrize("form", [np.asarray, _smooth])
@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh"])
def test_parts_of_the_hidden_units_give_the_same_output(activation, form):
    layer, inputs = FeedForward(12, activation), RANDOM.normal(size=(2, 3, 5)).astype("float32")
    layer.build(inputs.shape)
    layer.contract.bias.assign(RANDOM.normal(size=5))
    layer.expand.bias.assign(RANDOM.normal(size=12))
    expected = np.asarray(layer(inputs))
    weights = [np.asarray(each) for each in (layer.expand.kernel, layer.expand.bias, layer.contract.kernel)]
    parts = [
        HiddenUnits(form(weights[0][:, part]), weights[1][part], form(weights[2][part]))
        for part in (np.s_[:9], np.s_[9:])
    ]
    with forms_of_layers({id(layer): parts}):
        assert np.abs(np.asarray(layer(inputs)) - expected).max() < 1e-5


def test_outliers_are_rows_with_far_larger_weights():
    kernel = RANDOM.normal(size=(50, 8)).astype("float32")
    assert not outlier_rows(kernel).any()
    kernel[[4, 30], 2] = 40
    assert np.flatnonzero(outlier_rows(kernel)).tolist() == [4, 30]


def test_smooth_kernel_of_attention_gives_the_same_output():
    layer, inputs = MultiHeadAttention(2), RANDOM.normal(size=(2, 5, 6)).astype("float32")
    layer.build(inputs.shape)
    expected = np.asarray(layer(inputs))
    with forms_of_layers({id(layer): _smooth(np.asarray(layer.query_key_value_kernel))}):
        assert np.abs(np.asarray(layer(inputs)) - expected).max() < 1e-6


def test_recorded_ranges_are_those_of_all_inputs():
    layers = [FeedForward(4, "relu"), MultiHeadAttention(2), FeedForward(4)]
    batches = [RANDOM.normal(size=(2, steps, 6)).astype("float32") for steps in (3, 5)]
    for layer in layers:
        layer.build(batches[0].shape)
    with recorded_input_ranges() as ranges:
        for batch in batches:
            layers[0](batch)
            layers[1](batch)
    layers[0](10 * batches[0])
    rows = np.concatenate([batch.reshape(-1, 6) for batch in batches])
    assert set(ranges) == {id(layers[0].expand), id(layers[0].contract), id(layers[1])}
    for layer in (layers[0].expand, layers[1]):
        assert np.array_equal(ranges[id(layer)], np.abs(rows).max(axis=0))
    hidden = np.maximum(rows @ np.asarray(layers[0].expand.kernel), 0).max(axis=0)
    np.testing.assert_allclose(ranges[id(layers[0].contract)], hidden, atol=1e-5)


def test_smoothing_makes_the_ranges_of_columns_similar():
    kernel, ranges = RANDOM.normal(size=(50, 8)).astype("float32"), np.full(50, 2.0)
    assert smoothing_factors(ranges, kernel) is None
    # A column that is always 0 in the sample has a finite factor.
    ranges[[4, 30, 7]] = 40, 300, 0
    factors = smoothing_factors(ranges, kernel)
    assert factors is not None
    assert factors.dtype == np.float32 and np.isfinite(factors).all() and (factors > 0).all()
    columns, rows = ranges * factors, np.abs(kernel / factors[:, None]).max(axis=1)
    used = ranges > 0
    np.testing.assert_allclose((columns / rows)[used], (columns / rows)[0], rtol=1e-4)
    assert columns.max() / np.median(columns) < 15 < ranges.max() / np.median(ranges)
    of_zeros = smoothing_factors(ranges, 0 * kernel)
    assert of_zeros is not None and np.isfinite(of_zeros).all()
