"""Attention in blocks compared with attention over all pairs: values, every gradient, dropout."""

import keras
import numpy as np
import pytest
from keras import ops

from kmha.layers import long_attention as blockwise
from kmha.layers.attention import scaled_dot_product_attention
from kmha.layers.dropout import block_seed, keep_mask, keep_rate
from tests.layer_checks import BACKEND, compiled, gradients, run, seed_of, to_numpy

B, N, T, S, H = 2, 2, 11, 7, 4
GENERATOR = np.random.default_rng(3)
QUERY = GENERATOR.normal(size=(B, N, T, H)).astype("float32")
KEY, VALUE = GENERATOR.normal(size=(2, B, N, S, H)).astype("float32")
BY_OUTPUT = GENERATOR.normal(size=(B, N, T, H)).astype("float32")
# The second row of the batch is all padding; row 2 of the first is fully masked.
KEY_MASK = np.array([[1, 0, 1, 1, 0, 1, 0], [0] * S], "int32")
PAIR_MASK = (GENERATOR.random((B, T, S)) < 0.5).astype("int32")
PAIR_MASK[0, 2] = 0
MASKS = {"none": None, "[B, S]": KEY_MASK, "[B, T, S]": PAIR_MASK}
every_mask = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
RATE = 0.3


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Of 3: both lengths make several blocks, the last of them filled up."""
    monkeypatch.setattr(blockwise, "LARGEST_BLOCK", 3)


def _over_pairs(mask, dropout=None):
    return lambda q, k, v: scaled_dot_product_attention(q, k, v, mask, dropout)[0]


def _in_blocks(mask, rate=0.0, seed=None):
    return lambda q, k, v: blockwise.blockwise_attention(q, k, v, mask, rate, seed)


def _gradients(function):
    return gradients(lambda *inputs: ops.sum(function(*inputs) * BY_OUTPUT), QUERY, KEY, VALUE)


@every_mask
def test_values_and_every_gradient_equal_those_over_all_pairs(mask):
    expected, found = (run(form(mask), QUERY, KEY, VALUE) for form in (_over_pairs, _in_blocks))
    np.testing.assert_allclose(to_numpy(found), to_numpy(expected), atol=1e-5)
    if mask is not None:
        closed = np.broadcast_to((mask.reshape(B, -1, S).sum(-1) == 0)[:, None], (B, N, T))
        assert closed.any() and (to_numpy(found)[closed] == 0).all()
    for by, reference in zip(_gradients(_in_blocks(mask)), _gradients(_over_pairs(mask)), strict=True):
        np.testing.assert_allclose(by, reference, atol=1e-5)


@every_mask
def test_compiled_forms_give_the_same(mask):
    expected = to_numpy(run(_over_pairs(mask), QUERY, KEY, VALUE))
    for name, function in compiled(_in_blocks(mask)).items():
        found = to_numpy(function(QUERY, KEY, VALUE))
        np.testing.assert_allclose(found, expected, atol=1e-5, err_msg=name)


@pytest.mark.second
@pytest.mark.skipif(BACKEND == "jax", reason="lengths are always known there")
@pytest.mark.parametrize("jit_compile", [False, True])
def test_unknown_lengths_give_the_same_values_and_gradients(jit_compile):
    import tensorflow as tf

    specs = [tf.TensorSpec([None, N, None, H])] * 4 + [tf.TensorSpec([None, None], tf.int32)]

    @tf.function(input_signature=specs, jit_compile=jit_compile)
    def step(query, key, value, by_output, mask):
        with tf.GradientTape() as tape:
            tape.watch([query, key, value])
            output = blockwise.blockwise_attention(query, key, value, mask, RATE, seed_of(1, 2))
        return output, tape.gradient([output], [query, key, value], output_gradients=[by_output])

    for length, keys in ((T, S), (1, 2)):
        inputs = QUERY[:, :, :length], KEY[:, :, :keys], VALUE[:, :, :keys]
        by_output, mask = BY_OUTPUT[:, :, :length], KEY_MASK[:, :keys]
        tensors = [tf.constant(each) for each in inputs]
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            query, key, value = tensors
            output = blockwise.blockwise_attention(query, key, value, mask, RATE, seed_of(1, 2))
        expected = tape.gradient([output], tensors, output_gradients=[tf.constant(by_output)])
        found, by = step(*inputs, by_output, mask)
        np.testing.assert_allclose(found, output, atol=1e-5)
        for each, reference in zip(by, expected, strict=True):
            np.testing.assert_allclose(np.asarray(each), np.asarray(reference), atol=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_as_accurate_as_dense_attention(dtype):
    inputs = [ops.cast(each, dtype) for each in (QUERY, KEY, VALUE)]
    found = run(_in_blocks(KEY_MASK), *inputs)
    assert keras.backend.standardize_dtype(found.dtype) == dtype
    exact = to_numpy(run(_over_pairs(KEY_MASK), QUERY, KEY, VALUE))
    over_pairs = to_numpy(run(_over_pairs(KEY_MASK), *inputs))
    assert np.abs(to_numpy(found) - exact).max() < 1.5 * np.abs(over_pairs - exact).max() + 1e-4

    def half(function):
        return lambda *given: ops.cast(function(*(ops.cast(each, dtype) for each in given)), "float32")

    for by, reference in zip(
        _gradients(half(_in_blocks(KEY_MASK))), _gradients(_over_pairs(KEY_MASK)), strict=True
    ):
        np.testing.assert_allclose(by, reference, atol=0.1)


def test_large_scores_do_not_overflow():
    found = run(_in_blocks(KEY_MASK), 100 * QUERY, 100 * KEY, VALUE)
    expected = run(_over_pairs(KEY_MASK), 100 * QUERY, 100 * KEY, VALUE)
    np.testing.assert_allclose(to_numpy(found), to_numpy(expected), atol=1e-4)


def _dropout_mask(seed) -> np.ndarray:
    """The scaled dropout mask over all pairs: the joined masks of the blocks."""
    sizes = [3] * 4, [3] * 3  # of 11 queries and 7 keys, evenly: blocks of 3, the last ones filled up
    rows = []
    for i, size in enumerate(sizes[0]):
        numbers = [i * len(sizes[1]) + j for j in range(len(sizes[1]))]
        tiles = [keep_mask((B, N, size, 3), RATE, block_seed(seed, number)) for number in numbers]
        rows.append(np.concatenate([to_numpy(tile) for tile in tiles], axis=-1))
    return np.concatenate(rows, axis=2)[:, :, :T, :S] / keep_rate(RATE)


@every_mask
def test_dropout_drops_the_same_weights_forward_and_backward(mask):
    seed = seed_of(5, 6)
    dropout_mask = _dropout_mask(seed)
    assert 0 < (dropout_mask == 0).mean() < 0.6
    expected = _over_pairs(mask, lambda weights: weights * dropout_mask)
    found = run(_in_blocks(mask, RATE, seed), QUERY, KEY, VALUE)
    np.testing.assert_allclose(to_numpy(found), to_numpy(run(expected, QUERY, KEY, VALUE)), atol=1e-5)
    for by, reference in zip(_gradients(_in_blocks(mask, RATE, seed)), _gradients(expected), strict=True):
        np.testing.assert_allclose(by, reference, atol=1e-5)


def test_a_mask_of_another_rank_is_rejected():
    with pytest.raises(ValueError, match=r"\[B, S\] or \[B, T, S\], got shape \(2, 1, 11, 7\)"):
        blockwise.blockwise_attention(QUERY, KEY, VALUE, PAIR_MASK[:, None])
