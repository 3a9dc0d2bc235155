import numpy as np
import pytest

from kmha.layers.attention import MultiHeadAttention
from kmha.layers.eight_bit import (
    FeedForwardKernels,
    KernelInputs,
    ScaledTable,
    SmoothKernel,
    forms_of_layers,
    is_uneven,
    outlier_rows,
    recorded_inputs,
    round_for_inputs,
    round_to_8_bits,
    smooth_kernel,
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


def _smooth_in_parts(kernel):
    columns = np.array([0, 2], np.int32)
    smooth = _smooth(kernel)
    for each in smooth[:2]:
        each[columns] = 0
    return SmoothKernel(*smooth[:2], columns, kernel[columns])


@pytest.mark.parametrize("form", [np.asarray, _smooth, _smooth_in_parts])
@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh"])
def test_parts_of_the_hidden_units_give_the_same_output(activation, form):
    layer, inputs = FeedForward(12, activation), RANDOM.normal(size=(2, 3, 5)).astype("float32")
    layer.build(inputs.shape)
    layer.contract.bias.assign(RANDOM.normal(size=5))
    layer.expand.bias.assign(RANDOM.normal(size=12))
    expected = np.asarray(layer(inputs))
    weights = [np.asarray(each) for each in (layer.expand.kernel, layer.expand.bias, layer.contract.kernel)]
    order = RANDOM.permutation(12)
    contract = [form(weights[2][part]) for part in (order[:9], order[9:])]
    kernels = FeedForwardKernels(form(weights[0][:, order]), weights[1][order], contract)
    with forms_of_layers({id(layer): kernels}):
        assert np.abs(np.asarray(layer(inputs)) - expected).max() < 1e-5


def test_outliers_are_rows_with_far_larger_weights():
    kernel = RANDOM.normal(size=(50, 8)).astype("float32")
    assert not outlier_rows(kernel).any()
    kernel[[4, 30], 2] = 40
    assert np.flatnonzero(outlier_rows(kernel)).tolist() == [4, 30]


@pytest.mark.parametrize("form", [_smooth, _smooth_in_parts])
def test_smooth_kernels_of_attention_give_the_same_output(form):
    layer, inputs = MultiHeadAttention(2), RANDOM.normal(size=(2, 5, 6)).astype("float32")
    layer.build(inputs.shape)
    expected = np.asarray(layer(inputs))
    kernels = layer.query_key_value_kernel, layer.output_kernel
    with forms_of_layers({id(kernel): form(kernel.numpy()) for kernel in kernels}):
        assert np.abs(np.asarray(layer(inputs)) - expected).max() < 1e-6


def test_recorded_inputs_are_those_of_all_batches():
    layers = [FeedForward(4, "relu"), MultiHeadAttention(2), FeedForward(4)]
    batches = [RANDOM.normal(size=(2, steps, 6)).astype("float32") for steps in (3, 5)]
    for layer in layers:
        layer.build(batches[0].shape)
    with recorded_inputs() as inputs:
        for batch in batches:
            layers[0](batch)
            layers[1](batch)
    layers[0](10 * batches[0])
    rows = np.concatenate([batch.reshape(-1, 6) for batch in batches])
    expand, contract = layers[0].expand.kernel, layers[0].contract.kernel
    attention = layers[1].query_key_value_kernel
    assert set(inputs) == {id(each) for each in (expand, contract, attention, layers[1].output_kernel)}
    hidden = np.maximum(rows @ np.asarray(expand), 0)
    for kernel, expected in ((expand, rows), (attention, rows), (contract, hidden)):
        found = inputs[id(kernel)]
        assert found.num_rows == len(rows)
        np.testing.assert_allclose(found.largest, np.abs(expected).max(axis=0), atol=1e-5)
        np.testing.assert_allclose(found.moments, expected.T @ expected / len(rows), atol=1e-5)


def _inputs(rows):
    return KernelInputs(np.abs(rows).max(axis=0), rows.T @ rows / len(rows), len(rows))


def test_parts_and_factors_of_inputs():
    rows, part = RANDOM.normal(size=(9, 6)).astype("float32"), np.array([0, 1, 0, 1, 1, 0], bool)
    for found, expected in (
        (_inputs(rows).of(part), rows[:, part]),
        (_inputs(rows).scaled(FACTORS), rows * FACTORS),
    ):
        for one, other in zip(found, _inputs(expected), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def _scaled_rows(count):
    """Inputs with two large columns of small variance, one column that is large now and then, and one of zeros."""
    rows = RANDOM.normal(size=(count, 50)).astype("float32")
    rows[:, 4] += 40
    rows[:, 30] -= 30
    rows[::9, 9] *= 4
    rows[:, 7] = 0
    return rows


def test_smoothing_makes_the_ranges_of_columns_similar():
    kernel, ranges = RANDOM.normal(size=(50, 8)).astype("float32"), np.full(50, 2.0)
    assert not is_uneven(ranges)
    # A column that is always 0 in the sample has a finite factor.
    ranges[[4, 30, 7]] = 40, 300, 0
    assert is_uneven(ranges)
    factors = smoothing_factors(ranges, kernel)
    assert factors.dtype == np.float32 and np.isfinite(factors).all() and (factors > 0).all()
    columns, rows = ranges * factors, np.abs(kernel / factors[:, None]).max(axis=1)
    used = ranges > 0
    np.testing.assert_allclose((columns / rows)[used], (columns / rows)[0], rtol=1e-4)
    assert columns.max() / np.median(columns) < 15 < ranges.max() / np.median(ranges)
    assert np.isfinite(smoothing_factors(ranges, 0 * kernel)).all()


def _rounded_inputs(inputs):
    steps = np.abs(inputs).max(axis=1, keepdims=True) / 127
    return np.rint(inputs / steps) * steps


@pytest.mark.parametrize("apart", [False, True])
def test_smooth_kernels_lose_less_with_rounded_inputs(apart):
    seen, rows = _scaled_rows(90), _scaled_rows(400)
    kernel = RANDOM.normal(size=(50, 8)).astype("float32")
    form = smooth_kernel(kernel, _inputs(seen), lambda part, inputs: part, apart)
    expected = rows @ kernel
    found = _rounded_inputs(rows * form.factors) @ form.kernel
    if apart:
        assert form.columns.tolist() == [4, 30]
        assert not form.factors[form.columns].any()
        found += _rounded_inputs(rows[:, form.columns]) @ form.outliers
    else:
        assert form.columns is None
    lost, before = np.std(found - expected), np.std(_rounded_inputs(rows) @ kernel - expected)
    assert lost < (0.25 if apart else 0.6) * before
    layer = FeedForward(8, "relu")
    layer.build((None, None, 50))
    layer.expand.kernel.assign(kernel)
    kernels = FeedForwardKernels(form, layer.expand.bias, [layer.contract.kernel])
    plain = np.asarray(layer(rows[None]))
    with forms_of_layers({id(layer): kernels}):
        np.testing.assert_allclose(np.asarray(layer(rows[None])), plain, atol=1e-3)


def test_kernels_are_rounded_for_their_inputs():
    mixed = RANDOM.normal(size=(12, 150)) * np.linspace(0.1, 3, 150)
    seen, rows = (RANDOM.normal(size=(count, 12)).astype("float32") @ mixed for count in (60, 500))
    kernel = RANDOM.normal(size=(150, 20)).astype("float32")
    kernel[:, 3] = 0
    values, scales = round_to_8_bits(kernel, axis=0)
    found = round_for_inputs(kernel, _inputs(seen.astype("float32")).moments)
    lost, plain = (np.std(rows @ (each - kernel)) for each in (found, values * scales))
    assert 0 < lost < 0.5 * plain
    assert found.dtype == np.float32 and not found[:, 3].any()
    # Another program that rounds it to 8 bits changes nothing.
    again, same = round_to_8_bits(found, axis=0)
    np.testing.assert_allclose(same, scales, rtol=1e-6)
    np.testing.assert_allclose(again * same, found, rtol=1e-5)


def test_kernels_without_inputs_are_rounded_to_the_nearest_value():
    kernel = RANDOM.normal(size=(70, 4)).astype("float32")
    values, scales = round_to_8_bits(kernel, axis=0)
    np.testing.assert_allclose(round_for_inputs(kernel, np.zeros((70, 70))), values * scales, rtol=1e-6)
