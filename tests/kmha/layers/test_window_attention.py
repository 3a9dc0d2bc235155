"""Attention in windows compared with attention over all pairs under the equivalent mask."""

import numpy as np
import pytest
from keras import ops

from kmha.layers import long_attention as windows
from kmha.layers.attention import open_rows, scaled_dot_product_attention
from kmha.layers.long_attention import open_window_rows, window_mask, windowed_attention
from tests.layer_checks import compiled, gradients, run, to_numpy

B, N, H = 2, 2, 4
GENERATOR = np.random.default_rng(4)
# Length, window, first positions: several blocks and one, a text shorter than its window, or than its first positions.
FORMS = [(19, 2, 0), (19, 2, 3), (19, 5, 1), (12, 3, 1), (5, 9, 2), (2, 1, 3)]
every_form = pytest.mark.parametrize(("length", "window", "num_globals"), FORMS)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(windows, "SMALLEST_BLOCK", 4)


def _inputs(length):
    return GENERATOR.normal(size=(4, B, N, length, H)).astype("float32")


def _mask(length):
    mask = (GENERATOR.random((B, length)) < 0.7).astype("int32")
    # A gap larger than a window, which contains the first position.
    mask[1, : length - 1] = 0
    return mask


def test_the_mask_of_a_window():
    found = to_numpy(window_mask(6, 1, 2))[0]
    for row in range(6):
        for column in range(6):
            assert found[row, column] == (abs(row - column) <= 1 or row < 2 or column < 2)


@every_form
def test_values_and_gradients_equal_those_under_the_mask(length, window, num_globals):
    query, key, value, by_output = _inputs(length)
    for mask in (None, _mask(length)):
        pairs = to_numpy(window_mask(length, window, num_globals)).repeat(B, 0)
        pairs = pairs if mask is None else pairs * mask[:, None]

        def over_pairs(q, k, v, pairs=pairs):
            return scaled_dot_product_attention(q, k, v, pairs)[0]

        def in_windows(q, k, v, mask=mask):
            return windowed_attention(q, k, v, window, num_globals, mask)

        expected, found = (to_numpy(run(form, query, key, value)) for form in (over_pairs, in_windows))
        np.testing.assert_allclose(found, expected, atol=1e-5)
        for by, reference in zip(
            *(
                gradients(lambda *given, form=form: ops.sum(form(*given) * by_output), query, key, value)
                for form in (in_windows, over_pairs)
            ),
            strict=True,
        ):
            np.testing.assert_allclose(by, reference, atol=1e-5)


@every_form
def test_open_rows_are_those_of_the_mask(length, window, num_globals):
    mask = _mask(length)
    pairs = to_numpy(window_mask(length, window, num_globals)) * mask[:, None]
    expected = to_numpy(open_rows(pairs))
    np.testing.assert_array_equal(to_numpy(open_window_rows(mask, window, num_globals)), expected)


def test_compiled_forms_give_the_same():
    query, key, value, _ = _inputs(19)
    mask = _mask(19)
    expected = to_numpy(windowed_attention(query, key, value, 2, 1, mask))
    for name, function in compiled(lambda q, k, v: windowed_attention(q, k, v, 2, 1, mask)).items():
        np.testing.assert_allclose(to_numpy(function(query, key, value)), expected, atol=1e-5, err_msg=name)


def test_dropout_is_applied_to_every_weight_once():
    query, key, value, _ = _inputs(19)
    whole = to_numpy(windowed_attention(query, key, value, 2, 1))
    halved = to_numpy(windowed_attention(query, key, value, 2, 1, dropout=lambda weights: weights / 2))
    np.testing.assert_allclose(halved, whole / 2, atol=1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_close_to_float32(dtype):
    query, key, value, _ = _inputs(19)
    exact = to_numpy(windowed_attention(query, key, value, 2, 1))
    query, key, value = (ops.cast(each, dtype) for each in (query, key, value))
    found = windowed_attention(query, key, value, 2, 1)
    np.testing.assert_allclose(to_numpy(found), exact, atol=0.1)
