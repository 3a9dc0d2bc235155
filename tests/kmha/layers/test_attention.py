"""The free functions of attention, against loops and by their properties."""

import keras
import numpy as np
import pytest
from keras import ops

from kmha.layers.attention import attention_mask, open_rows, scaled_dot_product_attention, stack_heads
from tests.kmha.layers.references import loop_attention
from tests.layer_checks import compiled, gradients, run, to_numpy

B, N, T, S, H = 2, 3, 4, 5, 6
GENERATOR = np.random.default_rng(1)
QUERY = GENERATOR.normal(size=(B, N, T, H)).astype("float32")
KEY, VALUE = GENERATOR.normal(size=(2, B, N, S, H)).astype("float32")
# The second row of the batch is all padding; row 2 of the first is fully masked.
KEY_MASK = np.array([[1, 0, 1, 1, 0], [0, 0, 0, 0, 0]], "int32")
ROW_MASK = (GENERATOR.random((B, T, S)) < 0.6).astype("int32")
ROW_MASK[0, 2] = 0
MASKS = {"none": None, "[B, S]": KEY_MASK, "[B, T, S]": ROW_MASK}


def _as(dtype, *arrays):
    return [ops.cast(array, dtype) for array in arrays]


@pytest.mark.parametrize("mask_dtype", ["int32", "bool"])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_equals_a_loop_in_float64(mask, mask_dtype):
    given = None if mask is None else mask.astype(mask_dtype)
    output, weights = run(scaled_dot_product_attention, QUERY, KEY, VALUE, given)
    expected_output, expected_weights = loop_attention(QUERY, KEY, VALUE, mask)
    np.testing.assert_allclose(to_numpy(output), expected_output, atol=1e-6)
    np.testing.assert_allclose(to_numpy(weights), expected_weights, atol=1e-6)


def test_a_mask_of_another_rank_is_rejected():
    with pytest.raises(ValueError, match=r"or \[B, N, T, S\], got shape \(2, 1, 1, 4, 5\)"):
        scaled_dot_product_attention(QUERY, KEY, VALUE, ROW_MASK[:, None, None])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_softmax_is_in_float32(dtype):
    query, key, value = _as(dtype, QUERY, KEY, VALUE)
    _, weights = scaled_dot_product_attention(query, key, value, KEY_MASK[:1].repeat(B, 0))
    assert keras.backend.standardize_dtype(weights.dtype) == "float32"
    # 16-bit weights would differ from 1 by up to 4e-3 (bfloat16) or 5e-4 (float16).
    np.testing.assert_allclose(to_numpy(weights).sum(axis=-1), 1, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("mask", [KEY_MASK, ROW_MASK], ids=["[B, S]", "[B, T, S]"])
def test_a_fully_masked_row_gives_exact_zeros_on_every_path(mask, dtype):
    def attend(query, key, value):
        return scaled_dot_product_attention(query, key, value, mask)

    inputs = _as(dtype, QUERY, KEY, VALUE)
    closed = np.broadcast_to((mask.reshape(B, -1, S).sum(-1) == 0)[:, None], (B, N, T))
    assert closed.any() and not closed.all()
    for name, path in {"eager": attend, **compiled(attend)}.items():
        output, weights = (to_numpy(x) for x in path(*inputs))
        assert (output[closed] == 0).all() and (weights[closed] == 0).all(), name
        assert np.isfinite(output).all() and (output[~closed] != 0).any(), name


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_gradients_through_masked_keys_and_rows_are_exactly_zero(dtype):
    # The last two keys are masked for all rows, and row 2 is fully masked.
    mask = np.ones((B, T, S), "int32")
    mask[:, :, 3:] = 0
    mask[:, 2] = 0

    def loss(query, key, value):
        query, key, value = _as(dtype, query, key, value)
        output, weights = scaled_dot_product_attention(query, key, value, mask)
        return ops.sum(ops.cast(output, "float32") ** 2) + ops.sum(weights**2)

    by_query, by_key, by_value = gradients(loss, QUERY, KEY, VALUE)
    assert (by_query[:, :, 2] == 0).all()
    assert (by_query[:, :, [0, 1, 3]] != 0).any(axis=-1).all()
    for gradient in (by_key, by_value):
        assert (gradient[:, :, 3:] == 0).all()
        assert (gradient[:, :, :3] != 0).any(axis=-1).all()
        assert np.isfinite(gradient).all()


def test_a_causal_mask_hides_the_future_exactly():
    mask = to_numpy(attention_mask(np.ones((B, T), "int32"), causal=True))
    np.testing.assert_array_equal(mask, np.tril(np.ones((B, T, T))))
    for row in range(T):

        def loss(key, value, row=row):
            output, _ = scaled_dot_product_attention(QUERY, key, value, mask)
            return ops.sum(output[:, :, row] ** 2)

        by_key, by_value = gradients(loss, KEY[:, :, :T], VALUE[:, :, :T])
        assert (by_key[:, :, row + 1 :] == 0).all() and (by_value[:, :, row + 1 :] == 0).all()
        assert (by_value[:, :, : row + 1] != 0).any(axis=-1).all()


@pytest.mark.parametrize("dtype", ["int32", "bool"])
def test_attention_mask_joins_both_sides(dtype):
    query_mask, key_mask = np.array([[1, 1, 0]], dtype), np.array([[1, 0]], dtype)
    joined = attention_mask(query_mask, key_mask)
    assert keras.backend.standardize_dtype(joined.dtype) == "int32"
    np.testing.assert_array_equal(to_numpy(joined), [[[1, 0], [1, 0], [0, 0]]])
    np.testing.assert_array_equal(to_numpy(attention_mask(query_mask)), [[[1, 1, 0], [1, 1, 0], [0, 0, 0]]])


def test_open_rows_for_both_ranks():
    np.testing.assert_array_equal(to_numpy(open_rows(KEY_MASK)), [[[1]], [[0]]])
    np.testing.assert_array_equal(to_numpy(open_rows(ROW_MASK))[..., 0], ROW_MASK.any(axis=2))


def test_large_scores_do_not_overflow():
    output, weights = scaled_dot_product_attention(100 * QUERY, 100 * KEY, VALUE, KEY_MASK)
    assert np.isfinite(to_numpy(output)).all() and np.isfinite(to_numpy(weights)).all()
    assert (to_numpy(weights)[0, :, :, [1, 4]] == 0).all()


@pytest.mark.parametrize("mask", [None, np.array([[1], [0]], "int32")], ids=["open", "masked"])
def test_a_single_key_gets_all_the_weight_without_a_warning(mask):
    output, weights = scaled_dot_product_attention(QUERY, KEY[:, :, :1], VALUE[:, :, :1], mask)
    expected = np.ones((B, 1, 1, 1)) if mask is None else mask[:, :, None, None]
    np.testing.assert_array_equal(to_numpy(weights), np.broadcast_to(expected, (B, N, T, 1)))
    np.testing.assert_array_equal(to_numpy(output), VALUE[:, :, :1].repeat(T, axis=2) * expected)


def test_blocks_with_fewer_heads_are_padded_with_zeros():
    weights = [GENERATOR.random((B, heads, T, S)).astype("float32") for heads in (2, N, 1)]
    found = to_numpy(run(stack_heads, weights))
    assert found.shape == (B, 3, N, T, S)
    for layer, each in enumerate(weights):
        np.testing.assert_array_equal(found[:, layer, : each.shape[1]], each)
        assert not found[:, layer, each.shape[1] :].any()
