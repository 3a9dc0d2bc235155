"""The blocks against the same sums in NumPy, post-norm and pre-norm."""

import keras
import numpy as np
import pytest
from keras import ops

from kmha.layers.attention import attention_mask
from kmha.layers.encoder_block import (
    ACTIVATIONS,
    CrossAttentionBlock,
    EncoderBlock,
    FeedForward,
    gelu_in_training,
)
from tests.kmha.layers.references import activate, loop_multi_head_attention, normalize
from tests.layer_checks import fill_weights, gradients, run, to_numpy

B, T, S, D = 2, 4, 3, 6
EPSILON = 1e-6
GENERATOR = np.random.default_rng(9)
INPUTS = GENERATOR.normal(size=(B, T, D)).astype("float32")
CONTEXT = GENERATOR.normal(size=(B, S, D)).astype("float32")
MASK = np.array([[1, 1, 1, 0], [0, 0, 0, 0]], "int32")
CONTEXT_MASK = np.array([[1, 0, 1], [0, 0, 0]], "int32")
# A random mask; the first position and the second row are fully masked.
PAIR_MASK = np.stack([np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 1]]), np.zeros((T, S))]).astype(
    "int32"
)
every_norm = pytest.mark.parametrize("norm", ["post", "pre"])


def _block(norm, cls=EncoderBlock, **options):
    block = cls(2, 10, norm=norm, norm_epsilon=EPSILON, **options)
    block.build(INPUTS.shape)
    fill_weights(block, seed=10)
    return block


def _expected(block, x, mask, context=None):
    def norm(layer, values):
        return normalize(values, to_numpy(layer.gamma), to_numpy(layer.beta), EPSILON)

    def feed_forward(values):
        expand, expand_bias, contract, contract_bias = block.feed_forward.get_weights()
        return activate("gelu", values @ expand + expand_bias) @ contract + contract_bias

    x, context = (None if values is None else values.astype(np.float64) for values in (x, context))
    if block.norm == "post":
        mixed, weights = loop_multi_head_attention(block.attention, x, context, mask)
        x = norm(block.attention_norm, x + mixed)
        return norm(block.feed_forward_norm, x + feed_forward(x)), weights
    context = None if context is None else norm(block.attention_norm, context)
    mixed, weights = loop_multi_head_attention(block.attention, norm(block.attention_norm, x), context, mask)
    x = x + mixed
    return x + feed_forward(norm(block.feed_forward_norm, x)), weights


@pytest.mark.parametrize("mask", [None, MASK], ids=["open", "masked"])
@every_norm
def test_equals_the_same_sums_in_numpy(norm, mask):
    block = _block(norm)
    call = lambda x, m: block(x, attention_mask=m, return_attention_weights=True)  # noqa: E731
    output, weights = run(call, INPUTS, mask)
    expected, expected_weights = _expected(block, INPUTS, mask)
    np.testing.assert_allclose(to_numpy(output), expected, atol=1e-5)
    np.testing.assert_allclose(to_numpy(weights), expected_weights, atol=1e-6)


@pytest.mark.parametrize(
    "mask", [None, CONTEXT_MASK, PAIR_MASK], ids=["open", "masked", "a mask for each position"]
)
@every_norm
def test_cross_attention_equals_numpy(norm, mask):
    block = _block(norm, CrossAttentionBlock)
    call = lambda x, y, m: block(x, y, attention_mask=m, return_attention_weights=True)  # noqa: E731
    output, weights = run(call, INPUTS, CONTEXT, mask)
    expected, expected_weights = _expected(block, INPUTS, mask, CONTEXT)
    assert weights.shape == (B, 2, T, S)
    np.testing.assert_allclose(to_numpy(output), expected, atol=1e-5)
    np.testing.assert_allclose(to_numpy(weights), expected_weights, atol=1e-6)


@every_norm
def test_where_the_context_is_masked_attention_adds_zeros(norm):
    block = _block(norm, CrossAttentionBlock)
    output = to_numpy(run(block, INPUTS, CONTEXT, CONTEXT_MASK))
    # The output of a block without attention.
    for weight in (block.attention.output_kernel, block.attention.output_bias):
        weight.assign(np.zeros(weight.shape))
    without = to_numpy(run(lambda x, y: block(x, y), INPUTS, CONTEXT))
    np.testing.assert_allclose(output[1], without[1], atol=1e-6)
    assert np.abs(output[0] - without[0]).max() > 1e-2


@every_norm
def test_cross_attention_to_itself_is_self_attention(norm):
    block, other = _block(norm), _block(norm, CrossAttentionBlock)
    expected = to_numpy(run(block, INPUTS, MASK))
    np.testing.assert_allclose(to_numpy(run(other, INPUTS, INPUTS, MASK)), expected, atol=1e-6)


def test_post_norm_outputs_are_normalized_and_pre_norm_outputs_are_not():
    spreads = {}
    for norm in ("post", "pre"):
        block = EncoderBlock(2, 10, norm=norm)
        block.build(INPUTS.shape)
        spreads[norm] = to_numpy(run(block, 5 * INPUTS)).std(axis=-1)
    np.testing.assert_allclose(spreads["post"], 1, atol=1e-4)
    assert (np.abs(spreads["pre"] - 1) > 0.1).any()


@pytest.mark.parametrize(
    ("cls", "inputs"), [(EncoderBlock, (INPUTS,)), (CrossAttentionBlock, (INPUTS, INPUTS))]
)
@every_norm
def test_returning_weights_changes_no_bit_of_the_output(norm, cls, inputs):
    block = _block(norm, cls, dropout=0.3, attention_dropout=0.3)
    states = [v for v in block.variables if "seed_generator" in v.path]
    starts = [to_numpy(state) for state in states]
    assert len(states) == 2

    def output(request):
        for state, start in zip(states, starts, strict=True):
            state.assign(start)
        return block(*inputs, attention_mask=MASK, return_attention_weights=request, training=True)

    np.testing.assert_array_equal(to_numpy(output(True)[0]), to_numpy(output(False)))


def test_an_unknown_norm_is_rejected():
    with pytest.raises(ValueError, match="'middle'"):
        EncoderBlock(2, 8, norm="middle")


@every_norm
def test_a_context_of_another_size_is_rejected_with_both(norm):
    for context in (CONTEXT[..., :4], np.pad(CONTEXT, ((0, 0), (0, 0), (0, 2)))):
        with pytest.raises(
            ValueError, match=f"must have the size of the inputs', {D}, got {context.shape[-1]}"
        ):
            CrossAttentionBlock(2, 8, norm=norm)(INPUTS, context)


NETWORK_INPUTS = np.random.default_rng(8).normal(size=(2, 3, 4)).astype("float32")


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_equal_their_formulas(name):
    values = np.linspace(-6, 6, 121, dtype="float32")
    np.testing.assert_allclose(to_numpy(ACTIVATIONS[name](values)), activate(name, values), atol=2e-6)


def test_gelu_in_training_equals_gelu_and_its_gradient():
    values = np.concatenate([np.linspace(-6, 6, 121), [-40.0, 40.0]]).astype("float32")
    upstream = np.random.default_rng(2).normal(size=values.shape).astype("float32")
    np.testing.assert_allclose(to_numpy(gelu_in_training(values)), activate("gelu", values), atol=2e-6)
    (found,) = gradients(lambda x: ops.sum(gelu_in_training(x) * upstream), values)
    exact = values.astype(np.float64)
    step = 1e-4
    slope = (activate("gelu", exact + step) - activate("gelu", exact - step)) / (2 * step)
    np.testing.assert_allclose(found, upstream * slope, atol=2e-6)


@pytest.mark.parametrize("causal", [False, True])
@every_norm
def test_masks_of_keras_and_of_the_call_apply_together(norm, causal):
    block, cross = _block(norm), _block(norm, CrossAttentionBlock)
    masked, context = (
        keras.layers.Masking()(x * m[..., None]) for x, m in ((INPUTS, MASK), (CONTEXT, CONTEXT_MASK))
    )
    plain, plain_context = (ops.convert_to_tensor(to_numpy(x)) for x in (masked, context))
    causal_only = attention_mask(np.ones((B, T), "int32"), causal=True)
    pairs = attention_mask(MASK, causal=causal)
    calls = [
        (block(masked, use_causal_mask=causal), block(plain, attention_mask=pairs)),
        (block(masked, attention_mask=causal_only), block(plain, attention_mask=pairs * causal_only)),
        (
            cross(masked, context),
            cross(plain, plain_context, attention_mask=attention_mask(MASK, CONTEXT_MASK)),
        ),
    ]
    for found, expected in calls:
        np.testing.assert_allclose(to_numpy(found), to_numpy(expected), atol=1e-6)


def test_only_exact_gelu_has_a_training_implementation():
    for name in ACTIVATIONS:
        layer = FeedForward(6, name)
        layer.build(NETWORK_INPUTS.shape)
        fill_weights(layer)
        found, learning = (to_numpy(layer(NETWORK_INPUTS, training=training)) for training in (False, True))
        np.testing.assert_allclose(learning, found, rtol=0, atol=2e-6 if name == "gelu" else 0)


def test_the_two_forms_of_gelu_differ():
    values = np.linspace(-3, 3, 61, dtype="float32")
    difference = to_numpy(ACTIVATIONS["gelu"](values)) - to_numpy(ACTIVATIONS["gelu_tanh"](values))
    assert 1e-4 < np.abs(difference).max() < 1e-3


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_equals_two_products(name):
    layer = FeedForward(6, name)
    layer.build(NETWORK_INPUTS.shape)
    fill_weights(layer)
    expand, expand_bias, contract, contract_bias = (w.astype(np.float64) for w in layer.get_weights())
    expected = activate(name, NETWORK_INPUTS @ expand + expand_bias) @ contract + contract_bias
    np.testing.assert_allclose(to_numpy(layer(NETWORK_INPUTS)), expected, atol=2e-6)


def test_kernels_start_from_different_random_numbers():
    layer = FeedForward(4)
    layer.build(NETWORK_INPUTS.shape)
    first, second = (to_numpy(dense.kernel).ravel() for dense in (layer.expand, layer.contract))
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.9


def test_an_unknown_activation_is_rejected():
    with pytest.raises(ValueError, match="'swish'"):
        FeedForward(4, "swish")
