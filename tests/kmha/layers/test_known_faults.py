"""Common errors in published implementations of attention: each is reproduced, and kmha is shown not to have it.

`docs/concepts/attention.md` describes each of them.
"""

import keras
import numpy as np
import pytest
from keras import ops

from kmha.layers.attention import MultiHeadAttention, attention_mask, scaled_dot_product_attention
from kmha.layers.encoder_block import EncoderBlock
from tests.kmha.layers.references import projections
from tests.layer_checks import fill_weights, gradients, run, to_numpy

B, T, D = 2, 6, 8
GENERATOR = np.random.default_rng(14)
INPUTS = GENERATOR.normal(size=(B, T, D)).astype("float32")


def _layer(num_heads, **options):
    layer = MultiHeadAttention(num_heads, **options)
    layer.build(INPUTS.shape)
    fill_weights(layer, seed=15, scale=0.5)
    return layer


def _split(x, num_heads):
    """[B, T, N · H] to [B, N, T, H], as it should be."""
    return ops.transpose(ops.reshape(x, (x.shape[0], x.shape[1], num_heads, -1)), (0, 2, 1, 3))


def _published_layer(layer, x, split=_split, mask=None):
    """Self-attention as the samples write it, with the weights of ours and a way to split heads."""
    kernels, output_kernel, biases, output_bias = (np.asarray(part, "float32") for part in projections(layer))
    flat = kernels.shape[2] * kernels.shape[3]
    queries, keys, values = [
        split(ops.matmul(x, kernel.reshape(-1, flat)) + bias.reshape(flat), layer.num_heads)
        for kernel, bias in zip(kernels, biases, strict=True)
    ]
    mixed, _ = scaled_dot_product_attention(queries, keys, values, mask)
    joined = ops.reshape(ops.transpose(mixed, (0, 2, 1, 3)), (x.shape[0], x.shape[1], flat))
    return ops.matmul(joined, output_kernel.reshape(flat, -1)) + output_bias


def test_the_corrected_layer_equals_kmha():
    layer = _layer(2)
    np.testing.assert_allclose(
        to_numpy(run(lambda x: _published_layer(layer, x), INPUTS)), to_numpy(run(layer, INPUTS)), atol=1e-5
    )


class _UndefinedSize(keras.layers.Layer):
    """Reads an attribute that was never set when it splits the heads."""

    def __init__(self, num_heads):
        super().__init__()
        self.num_heads = num_heads

    def call(self, x):
        return ops.reshape(x, (-1, x.shape[1], self.num_heads, self.d_model // self.num_heads))


def test_a_undefined_d_model_fails_at_the_first_call():
    with pytest.raises(AttributeError, match="d_model"):
        _UndefinedSize(2)(INPUTS)
    # kmha's layer takes the size from its input when it is built.
    layer = MultiHeadAttention(2)
    assert layer(INPUTS).shape == INPUTS.shape
    assert layer.head_size == D // 2


def _spread_of_scores(weights):
    """Spread of a row's scores: the logarithm of softmax retains their differences."""
    return np.log(to_numpy(weights)).std(axis=-1).mean()


@pytest.mark.parametrize("num_heads", [4, 16])
def test_a_scaling_by_the_hidden_size_flattens_the_weights(num_heads):
    head_dim, length = 16, 64
    heads = GENERATOR.normal(size=(3, 1, num_heads, length, head_dim)).astype("float32")
    hidden_dim = num_heads * head_dim

    scores = ops.einsum("bnth,bnsh->bnts", heads[0], heads[1])
    faulty = ops.softmax(scores / hidden_dim**0.5, axis=-1)
    _, weights = scaled_dot_product_attention(*heads)
    # Of independent values of variance 1, scores should have variance 1 however many heads there are.
    assert _spread_of_scores(faulty) == pytest.approx(num_heads**-0.5, rel=0.05)
    assert _spread_of_scores(weights) == pytest.approx(1, rel=0.05)


def test_b_a_residual_from_the_projected_query_loses_the_input():
    block = EncoderBlock(2, 4, norm="pre")
    block.build(INPUTS.shape)
    fill_weights(block)
    # Both branches are zero, and the query's kernel ignores the last feature.
    for weight in (block.attention.output_kernel, block.attention.output_bias):
        weight.assign(np.zeros(weight.shape))
    for weight in block.feed_forward.contract.weights:
        weight.assign(np.zeros(weight.shape))
    kernel = to_numpy(block.attention.query_key_value_kernel).copy()
    kernel[-1] = 0
    block.attention.query_key_value_kernel.assign(kernel)
    changed = INPUTS.copy()
    changed[..., -1] += 1

    def faulty(x):
        projected_query = ops.matmul(x, kernel[:, :D])
        return projected_query + block.attention(x)

    # A correct block returns its input; the faulty one does not depend on the change.
    np.testing.assert_array_equal(to_numpy(block(INPUTS)), INPUTS)
    np.testing.assert_array_equal(to_numpy(block(changed)), changed)
    assert np.abs(to_numpy(faulty(INPUTS)) - INPUTS).max() > 0.1
    np.testing.assert_allclose(to_numpy(faulty(changed)), to_numpy(faulty(INPUTS)), atol=1e-6)


def _fill(dtype):
    return ops.cast(ops.convert_to_tensor(-1e9, "float32"), dtype)


def _added_mask(scores, mask):
    """Softmax in the dtype of the scores, after adding -1e9 where the mask is 0."""
    return ops.softmax(scores + (1 - ops.cast(mask, scores.dtype)) * _fill(scores.dtype), axis=-1)


def _chosen_mask(scores, mask):
    """The same by choosing instead of adding."""
    return ops.softmax(ops.where(ops.cast(mask, "bool"), scores, _fill(scores.dtype)), axis=-1)


MASK = np.array([[1, 1, 1, 0], [0, 0, 0, 0]], "int32")
HEADS = GENERATOR.normal(size=(3, 2, 1, 4, 5)).astype("float32")


def _scores(dtype):
    query, key, _ = (ops.cast(x, dtype) for x in HEADS)
    return ops.einsum("bnth,bnsh->bnts", query, key), MASK[:, None, None, :]


def test_c_minus_1e9_is_infinite_in_float16():
    assert to_numpy(_fill("float16")) == -np.inf
    scores, mask = _scores("float16")
    # 0 · inf is NaN: adding breaks unmasked values, selecting only the fully masked row.
    assert np.isnan(to_numpy(_added_mask(scores, mask))[0, ..., :3]).all()
    chosen = to_numpy(_chosen_mask(scores, mask))
    assert np.isfinite(chosen[0]).all() and np.isnan(chosen[1]).all()

    query, key, value = ops.cast(HEADS, "float16")
    output, weights = (to_numpy(x) for x in scaled_dot_product_attention(query, key, value, MASK))
    assert np.isfinite(output).all() and np.isfinite(weights).all()
    assert (output[1] == 0).all() and (weights[1] == 0).all()


def test_c_in_float32_the_fully_masked_row_attends_to_padding():
    scores, mask = _scores("float32")
    for faulty in (_added_mask, _chosen_mask):
        np.testing.assert_allclose(to_numpy(faulty(scores, mask))[1].sum(axis=-1), 1, atol=1e-6)
    _, weights = scaled_dot_product_attention(HEADS[0], HEADS[1], HEADS[2], MASK)
    assert (to_numpy(weights)[1] == 0).all()


def test_d_without_a_mask_padding_changes_the_output():
    layer = _layer(2)
    padded = np.concatenate([INPUTS, GENERATOR.normal(size=(B, 3, D)).astype("float32")], axis=1)
    mask = np.array([[1] * T + [0] * 3] * B, "int32")
    alone = to_numpy(run(layer, INPUTS))
    without = to_numpy(run(layer, padded))[:, :T]
    with_mask = to_numpy(run(lambda x: layer(x, attention_mask=mask), padded))[:, :T]
    assert np.abs(without - alone).max() > 1e-2
    np.testing.assert_allclose(with_mask, alone, atol=1e-6)


def _split_by_reshape(x, num_heads):
    """[B, T, N · H] to [B, N, T, H] by reshape alone: the axes get the right sizes and the wrong values."""
    return ops.reshape(x, (x.shape[0], num_heads, x.shape[1], -1))


def test_e_a_single_head_hides_heads_split_by_reshape():
    def faulty(layer):
        return to_numpy(run(lambda x: _published_layer(layer, x, _split_by_reshape), INPUTS))

    one, two = _layer(1), _layer(2)
    np.testing.assert_allclose(faulty(one), to_numpy(run(one, INPUTS)), atol=1e-5)
    assert np.abs(faulty(two) - to_numpy(run(two, INPUTS))).max() > 0.05


def test_e_heads_split_by_reshape_look_into_the_future():
    layer = _layer(2)
    causal = attention_mask(np.ones((B, T), "int32"), causal=True)

    def first_row(call):
        return gradients(lambda x: ops.sum(call(x)[:, 0] ** 2), INPUTS)[0]

    faulty = first_row(lambda x: _published_layer(layer, x, _split_by_reshape, causal))
    ours = first_row(lambda x: layer(x, attention_mask=causal))
    assert (faulty[:, 1:] != 0).any()
    assert (ours[:, 1:] == 0).all() and (ours[:, 0] != 0).any()
