"""The encoder block against the same sums in NumPy, post-norm and pre-norm."""

import numpy as np
import pytest

from kmha.layers.encoder_block import EncoderBlock
from tests.kmha.layers.references import activate, loop_multi_head_attention, normalize
from tests.layer_checks import fill_weights, run, to_numpy

B, T, D = 2, 4, 6
EPSILON = 1e-6
INPUTS = np.random.default_rng(9).normal(size=(B, T, D)).astype("float32")
MASK = np.array([[1, 1, 1, 0], [0, 0, 0, 0]], "int32")


def _block(norm, **options):
    block = EncoderBlock(2, 10, norm=norm, norm_epsilon=EPSILON, **options)
    block.build(INPUTS.shape)
    fill_weights(block, seed=10)
    return block


def _expected(block, x, mask):
    def norm(layer, values):
        return normalize(values, to_numpy(layer.gamma), to_numpy(layer.beta), EPSILON)

    def feed_forward(values):
        expand, expand_bias, contract, contract_bias = block.feed_forward.get_weights()
        return activate("gelu", values @ expand + expand_bias) @ contract + contract_bias

    x = x.astype(np.float64)
    if block.norm == "post":
        mixed, weights = loop_multi_head_attention(block.attention, x, mask=mask)
        x = norm(block.attention_norm, x + mixed)
        return norm(block.feed_forward_norm, x + feed_forward(x)), weights
    mixed, weights = loop_multi_head_attention(block.attention, norm(block.attention_norm, x), mask=mask)
    x = x + mixed
    return x + feed_forward(norm(block.feed_forward_norm, x)), weights


@pytest.mark.parametrize("mask", [None, MASK], ids=["open", "masked"])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_equals_the_same_sums_in_numpy(norm, mask):
    block = _block(norm)
    call = lambda x, m: block(x, attention_mask=m, return_attention_weights=True)  # noqa: E731
    output, weights = run(call, INPUTS, mask)
    expected, expected_weights = _expected(block, INPUTS, mask)
    np.testing.assert_allclose(to_numpy(output), expected, atol=1e-5)
    np.testing.assert_allclose(to_numpy(weights), expected_weights, atol=1e-6)


def test_post_norm_leaves_normalised_rows_and_pre_norm_does_not():
    spreads = {}
    for norm in ("post", "pre"):
        block = EncoderBlock(2, 10, norm=norm)
        block.build(INPUTS.shape)
        spreads[norm] = to_numpy(run(block, 5 * INPUTS)).std(axis=-1)
    np.testing.assert_allclose(spreads["post"], 1, atol=1e-4)
    assert (np.abs(spreads["pre"] - 1) > 0.1).any()


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_asking_for_the_weights_changes_no_bit_of_the_output(norm):
    block = _block(norm, dropout=0.3, attention_dropout=0.3)
    states = [v for v in block.variables if "seed_generator" in v.path]
    starts = [to_numpy(state) for state in states]
    assert len(states) == 2

    def output(ask):
        for state, start in zip(states, starts, strict=True):
            state.assign(start)
        return block(INPUTS, attention_mask=MASK, return_attention_weights=ask, training=True)

    np.testing.assert_array_equal(to_numpy(output(True)[0]), to_numpy(output(False)))


def test_an_unknown_norm_is_refused():
    with pytest.raises(ValueError, match="'middle'"):
        EncoderBlock(2, 8, norm="middle")
