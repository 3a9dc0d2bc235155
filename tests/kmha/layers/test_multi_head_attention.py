"""`MultiHeadAttention` against loops, against Keras' own layer, and by its properties."""

import keras
import numpy as np
import pytest
from keras import ops

from kmha.layers.attention import MultiHeadAttention, attention_mask
from tests.kmha.layers.references import loop_multi_head_attention, projections
from tests.layer_checks import compiled, fill_weights, gradients, run, to_numpy

B, T, S, D, E = 2, 5, 4, 8, 6
GENERATOR = np.random.default_rng(2)
QUERY = GENERATOR.normal(size=(B, T, D)).astype("float32")
SAME = GENERATOR.normal(size=(B, S, D)).astype("float32")
OTHER = GENERATOR.normal(size=(B, S, E)).astype("float32")
# value, num_heads, head_dim: all three kinds of projection, one head, and a head_dim independent of D.
FORMS = {
    "self, 2 heads": (None, 2, None),
    "self, 1 head": (None, 1, None),
    "cross, same size, 3 heads of 5": (SAME, 3, 5),
    "cross, other size, 2 heads": (OTHER, 2, None),
    "cross, other size, 1 head of 5": (OTHER, 1, 5),
}


def _layer(value=None, num_heads=2, head_dim=None, **options):
    layer = MultiHeadAttention(num_heads, head_dim, **options)
    layer.build(QUERY.shape, None if value is None else value.shape)
    fill_weights(layer, seed=3)
    return layer


def _output(layer, query, value=None, mask=None):
    return to_numpy(run(lambda q, v, m: layer(q, v, attention_mask=m), query, value, mask))


def _output_and_weights(layer, query, value=None, mask=None):
    call = lambda q, v, m: layer(q, v, attention_mask=m, return_attention_weights=True)  # noqa: E731
    return [to_numpy(x) for x in run(call, query, value, mask)]


def _mask(kind, sources):
    if kind is None:
        return None
    if kind == "[B, S]":
        mask = np.ones((B, sources), "int32")
        mask[0, 2:] = 0
        mask[1] = 0
        return mask
    mask = (np.random.default_rng(4).random((B, T, sources)) < 0.6).astype("int32")
    mask[0, 1] = 0
    mask[:, 0, 0] = 1
    return mask


@pytest.mark.parametrize("mask_kind", [None, "[B, S]", "[B, T, S]"])
@pytest.mark.parametrize(("value", "num_heads", "head_dim"), FORMS.values(), ids=FORMS)
def test_equals_a_loop_in_float64(value, num_heads, head_dim, mask_kind):
    layer = _layer(value, num_heads, head_dim)
    mask = _mask(mask_kind, T if value is None else S)
    expected_output, expected_weights = loop_multi_head_attention(layer, QUERY, value, mask)
    output, weights = _output_and_weights(layer, QUERY, value, mask)
    np.testing.assert_allclose(output, expected_output, atol=2e-6)
    np.testing.assert_allclose(weights, expected_weights, atol=1e-6)


@pytest.mark.parametrize("masked", [False, True], ids=["open", "masked"])
@pytest.mark.parametrize(("value", "num_heads", "head_dim"), FORMS.values(), ids=FORMS)
def test_equals_keras_with_the_same_weights(value, num_heads, head_dim, masked):
    layer = _layer(value, num_heads, head_dim)
    source = QUERY if value is None else value
    # No row is fully masked: there Keras gives the mean of the values, kmha zeros.
    mask = np.ones((B, T, source.shape[1]), bool)
    mask[:, 1:, 1:] = np.random.default_rng(5).random((B, T - 1, source.shape[1] - 1)) < 0.5
    mask = mask if masked else None

    theirs = keras.layers.MultiHeadAttention(layer.num_heads, layer.head_size)
    theirs.build(QUERY.shape, source.shape)
    kernels, output_kernel, biases, output_bias = projections(layer)
    pairs = zip(kernels, biases, strict=True)
    theirs.set_weights([*(array for pair in pairs for array in pair), output_kernel, output_bias])
    call = lambda q, v, m: theirs(q, v, attention_mask=m, return_attention_scores=True)  # noqa: E731
    expected, expected_weights = run(call, QUERY, source, mask)
    output, weights = _output_and_weights(layer, QUERY, value, mask)
    np.testing.assert_allclose(output, to_numpy(expected), atol=1e-5)
    np.testing.assert_allclose(weights, to_numpy(expected_weights), atol=1e-5)


def test_self_attention_equals_cross_attention_to_the_same_input():
    layer = _layer()
    np.testing.assert_allclose(_output(layer, QUERY, QUERY), _output(layer, QUERY), atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("use_bias", [True, False], ids=["bias", "no bias"])
def test_fully_masked_rows_give_exact_zeros_in_every_dtype(use_bias, dtype):
    layer = _layer(use_bias=use_bias, dtype=dtype)
    for kind, closed in (("[B, S]", (1, slice(None))), ("[B, T, S]", (0, 1))):
        mask = _mask(kind, T)
        output, weights = _output_and_weights(layer, QUERY, mask=mask)
        assert (output[closed] == 0).all()
        assert (np.moveaxis(weights, 1, 2)[closed] == 0).all()
        assert np.isfinite(output).all() and (output[0, 0] != 0).any()
        # Only a softmax in float32 is this close to 1.
        np.testing.assert_allclose(weights[0, :, 0].sum(-1), 1, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "mixed_float16"])
def test_gradients_through_masked_positions_are_exactly_zero(dtype):
    layer = _layer(SAME, dtype=dtype)
    mask = _mask("[B, S]", S)

    def loss(query, value):
        return ops.sum(ops.cast(layer(query, value, attention_mask=mask), "float32") ** 2)

    by_query, by_value = gradients(loss, QUERY, SAME)
    assert (by_query[1] == 0).all() and (by_value[1] == 0).all()
    assert (by_value[0, 2:] == 0).all()
    assert (by_query[0] != 0).any() and (by_value[0, :2] != 0).any(axis=-1).all()
    assert np.isfinite(by_query).all() and np.isfinite(by_value).all()


def test_gradients_of_real_rows_do_not_reach_padding():
    layer = _layer()
    mask = attention_mask(np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], "int32"))
    (gradient,) = gradients(lambda query: ops.sum(layer(query, attention_mask=mask) ** 2), QUERY)
    assert (gradient[0, 3:] == 0).all() and (gradient[0, :3] != 0).any()


@pytest.mark.parametrize("training", [False, True])
def test_returning_weights_changes_no_bit_of_the_output(training):
    layer = _layer(dropout=0.5)
    mask = _mask("[B, T, S]", T)
    seed_state = layer.weight_dropout.seed_generator.state
    start = to_numpy(seed_state)

    def outputs(request):
        seed_state.assign(start)
        return layer(QUERY, attention_mask=mask, return_attention_weights=request, training=training)

    plain = to_numpy(outputs(False))
    output, weights = outputs(True)
    np.testing.assert_array_equal(to_numpy(output), plain)
    dropped = not np.array_equal(plain, to_numpy(layer(QUERY, attention_mask=mask)))
    assert dropped == training
    np.testing.assert_allclose(to_numpy(weights)[1, :, 0].sum(-1), 1, atol=1e-6)


def test_returning_weights_changes_no_bit_of_the_compiled_output():
    layer = _layer()
    with_weights = compiled(lambda query: layer(query, return_attention_weights=True)[0])
    for name, plain in compiled(lambda query: layer(query)).items():
        np.testing.assert_array_equal(
            to_numpy(with_weights[name](QUERY)), to_numpy(plain(QUERY)), err_msg=name
        )


def test_dropout_retains_the_mean():
    layer = _layer(dropout=0.5)
    many = np.repeat(QUERY[:1], 4000, axis=0)
    drawn = to_numpy(layer(many, training=True)).mean(axis=0)
    np.testing.assert_allclose(drawn, to_numpy(layer(QUERY[:1]))[0], atol=0.06)


def test_permuting_positions_permutes_the_output():
    layer = _layer()
    order = np.array([3, 0, 4, 1, 2])
    np.testing.assert_allclose(_output(layer, QUERY[:, order]), _output(layer, QUERY)[:, order], atol=1e-6)
    rotary = _layer(rotary=True)
    difference = _output(rotary, QUERY[:, order]) - _output(rotary, QUERY)[:, order]
    assert np.abs(difference).max() > 1e-2


def test_a_symbolic_call_gives_the_weights_too(tmp_path):
    inputs = keras.Input((T, D))
    outputs = MultiHeadAttention(2)(inputs, return_attention_weights=True)
    assert [x.shape for x in outputs] == [(None, T, D), (None, 2, T, T)]
    model = keras.Model(inputs, outputs)
    model.save(tmp_path / "weights.keras")
    again = keras.saving.load_model(tmp_path / "weights.keras", safe_mode=True)
    for ours, theirs in zip(model(QUERY), again(QUERY), strict=True):
        np.testing.assert_array_equal(to_numpy(ours), to_numpy(theirs))


@pytest.mark.parametrize("value", [None, OTHER], ids=["fused", "apart"])
def test_kernels_start_from_different_random_numbers(value):
    layer = MultiHeadAttention(2)
    layer.build(QUERY.shape, None if value is None else value.shape)
    starts = [to_numpy(weight).ravel()[:30] for weight in layer.weights if weight.name.endswith("kernel")]
    correlations = np.corrcoef(starts) - np.eye(len(starts))
    assert len(starts) == (2 if value is None else 3) and np.abs(correlations).max() < 0.9


def test_heads_that_do_not_divide_the_hidden_size_are_rejected():
    with pytest.raises(ValueError, match="got hidden size 8 and num_heads 3"):
        MultiHeadAttention(3)(QUERY)


def test_odd_heads_cannot_be_rotated():
    with pytest.raises(ValueError, match="even head size, got 3"):
        MultiHeadAttention(2, key_dim=3, rotary=True)(QUERY)
