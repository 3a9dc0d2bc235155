import numpy as np
import pytest

from kmha.layers.eight_bit import HiddenUnits, ScaledTable, forms_of_layers, outlier_rows, round_to_8_bits
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


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh"])
def test_parts_of_the_hidden_units_give_the_same_output(activation):
    layer, inputs = FeedForward(12, activation), RANDOM.normal(size=(2, 3, 5)).astype("float32")
    layer.build(inputs.shape)
    layer.contract.bias.assign(RANDOM.normal(size=5))
    layer.expand.bias.assign(RANDOM.normal(size=12))
    expected = np.asarray(layer(inputs))
    weights = [np.asarray(each) for each in (layer.expand.kernel, layer.expand.bias, layer.contract.kernel)]
    parts = [
        HiddenUnits(weights[0][:, part], weights[1][part], weights[2][part])
        for part in (np.s_[:9], np.s_[9:])
    ]
    with forms_of_layers({id(layer): parts}):
        assert np.abs(np.asarray(layer(inputs)) - expected).max() < 1e-5


def test_outliers_are_rows_with_far_larger_weights():
    kernel = RANDOM.normal(size=(50, 8)).astype("float32")
    assert not outlier_rows(kernel).any()
    kernel[[4, 30], 2] = 40
    assert np.flatnonzero(outlier_rows(kernel)).tolist() == [4, 30]
