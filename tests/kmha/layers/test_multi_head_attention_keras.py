"""The cases of Keras' tests of its `MultiHeadAttention`: `MultiHeadAttention` takes the same calls and masks.

`docs/how-to/own-model.md` counts the cases and lists the differences.
"""

import warnings

import keras
import numpy as np
import pytest
from keras import ops

from kmha.layers.attention import MultiHeadAttention
from kmha.layers.attention_parts import blocks_from
from tests.kmha.layers.references import projections
from tests.layer_checks import fill_weights, gradients, keras_mask, run, to_numpy

GENERATOR = np.random.default_rng(0)
# A padded row, a full row, and a row of one token.
IDS = np.array([[1, 2, 3, 0, 0], [3, 3, 1, 1, 2], [1, 0, 0, 0, 0]])
OTHER_IDS = np.array([[5, 4, 0], [3, 0, 0], [2, 1, 1]])
CAUSAL = np.tril(np.ones((1, 5, 5), bool))


def _normal(*shape):
    return GENERATOR.normal(size=shape).astype("float32")


def _filled(*shapes, **options):
    layer = MultiHeadAttention(2, 4, **options)
    layer.build(*shapes)
    fill_weights(layer)
    return layer


def _embedded(ids, size=8):
    """Vectors with a Keras mask where the id is 0, float [B, T, size]."""
    return keras.layers.Embedding(6, size, mask_zero=True)(ids)


def _unmasked(x):
    return ops.convert_to_tensor(to_numpy(x))


@pytest.mark.parametrize(
    ("options", "num_weights"), [({}, 4), ({"value_dim": 4, "use_bias": False, "dropout": 0.5}, 4)], ids=str
)
def test_a_layer_has_few_weights_and_the_size_of_the_query(options, num_weights):
    layer = MultiHeadAttention(num_heads=2, key_dim=2, **options)
    output = layer(_normal(2, 8, 16), _normal(2, 4, 16))
    assert output.shape == (2, 8, 16) and layer.supports_masking
    assert len(layer.trainable_weights) == num_weights
    theirs = keras.layers.MultiHeadAttention(num_heads=2, key_dim=2, **options)
    theirs.build((2, 8, 16), (2, 4, 16))
    assert layer.count_params() == theirs.count_params()


@pytest.mark.parametrize(
    ("key", "output_shape"), [(None, None), ((2, 3), None), (None, (3, 4)), ((2, 3), (1, 5))], ids=str
)
def test_the_computed_shape_is_that_of_the_output(key, output_shape):
    layer = MultiHeadAttention(num_heads=2, key_dim=2, value_dim=2, output_shape=output_shape)
    shapes = [(7, 4, 8), (7, 2, 8), key and (7, *key)]
    query, value, key = [shape and np.ones(shape) for shape in shapes]
    output = layer(query=query, value=value, key=key)
    assert output.shape == (7, 4, *(output_shape or (8,)))
    assert layer.compute_output_shape(*shapes) == output.shape
    assert layer.compute_output_shape(*(shape and list(shape) for shape in shapes)) == output.shape
    again = MultiHeadAttention.from_config(layer.get_config())
    again.build(*shapes)
    again.set_weights(layer.get_weights())
    np.testing.assert_array_equal(to_numpy(again(query, value, key)), to_numpy(output))


@pytest.mark.parametrize(
    "shapes",
    [
        ((2, 4, 8), (2, 2, 7), (2,)),
        ((2, 4, 8), (2, 2, 8), (2, 1, 7)),
        ((2, 4, 2, 8), (2, 1, 5, 8), (2, 15, 5, 2)),
    ],
    ids=str,
)
def test_keys_and_values_of_different_lengths_are_rejected(shapes):
    layer = MultiHeadAttention(num_heads=4, key_dim=2)
    with pytest.raises(ValueError, match="must be equal"):
        layer.compute_output_shape(*shapes)
    with pytest.raises(ValueError, match="must be equal"):
        layer(*(np.ones(shape) for shape in shapes))


def test_more_than_one_axis_of_positions_is_rejected():
    with pytest.raises(ValueError, match=r"\[B, T, D\], got shape \(2, 3, 4, 8\)"):
        MultiHeadAttention(2)(np.ones((2, 3, 4, 8)))


@pytest.mark.parametrize("size", [0, -2, 1.5])
def test_sizes_that_are_not_positive_integers_are_rejected(size):
    for name in ("num_heads", "key_dim", "value_dim", "output_shape"):
        with pytest.raises(ValueError, match=f"{name} must be .*got {size}"):
            MultiHeadAttention(**{"num_heads": 4, "key_dim": 4, name: size})
    with pytest.raises(ValueError, match="num_heads must be .*got None"):
        MultiHeadAttention(None)  # pyright: ignore
    MultiHeadAttention(4, 4, value_dim=None)


def test_kernels_apart_start_from_different_random_numbers():
    initializer = keras.initializers.TruncatedNormal(stddev=0.02)
    layer = MultiHeadAttention(12, 64, kernel_initializer=initializer)
    layer.build((2, 4, 8), (2, 3, 8), (2, 3, 9))
    kernels = [to_numpy(weight)[:8] for weight in layer.weights if weight.name.endswith("kernel")]
    assert len(kernels) == 4
    starts = [kernel.ravel()[:60] for kernel in kernels]
    assert np.abs(np.corrcoef(starts) - np.eye(4)).max() < 0.9


def test_the_output_has_the_mask_of_the_query():
    layer = MultiHeadAttention(num_heads=2, key_dim=2)
    query = _embedded(IDS)
    for output in (layer(query, _normal(3, 3, 8)), layer(query)):
        np.testing.assert_array_equal(keras_mask(output), IDS > 0)
    output, weights = layer(query, return_attention_scores=True)
    np.testing.assert_array_equal(keras_mask(output), IDS > 0)
    assert keras_mask(weights) is None and keras_mask(layer(_unmasked(query))) is None


@pytest.mark.parametrize("length", [None, 1], ids=["dense", "blocks"])
@pytest.mark.parametrize("causal", [False, True])
def test_keras_masks_and_the_causal_mask_apply_together(causal, length):
    layer = MultiHeadAttention(num_heads=2, key_dim=2)
    query, value = _embedded(IDS), _embedded(OTHER_IDS)
    with blocks_from(length):
        output = layer(query=query, value=value, use_causal_mask=causal)
    mask = (IDS > 0)[:, :, None] & (OTHER_IDS > 0)[:, None]
    if causal:
        mask &= np.tril(np.ones((5, 3), bool))
    query, value = _unmasked(query), _unmasked(value)
    expected = to_numpy(layer(query, value, attention_mask=mask))
    np.testing.assert_allclose(to_numpy(output), expected, atol=1e-6)
    by_name = layer(query, value, query_mask=IDS > 0, value_mask=OTHER_IDS > 0, use_causal_mask=causal)
    np.testing.assert_allclose(to_numpy(by_name), expected, atol=1e-6)
    assert (expected[0, 3:] == 0).all() and (expected[0, :3] != 0).any()


def test_three_tokens_and_two_paddings_attend_to_three_tokens():
    """The mask of `Embedding(mask_zero=True)` had no effect."""
    inputs = keras.Input((5,), dtype="int32")
    x = keras.layers.Embedding(6, 8, mask_zero=True)(inputs)
    for outputs in (
        MultiHeadAttention(2)(x, return_attention_scores=True),
        MultiHeadAttention(2)(x, x, return_attention_scores=True),
        MultiHeadAttention(2)(x, x, x, return_attention_scores=True),
    ):
        weights = to_numpy(keras.Model(inputs, outputs[1])(IDS))
        assert (weights[0, :, :3, :3] > 0).all() and (weights[0, :, :, 3:] == 0).all()
        assert (weights[0, :, 3:] == 0).all() and (weights[1] > 0).all()


def test_a_mask_may_have_an_axis_for_heads():
    x, layer = _normal(2, 5, 8), _filled((2, 5, 8))
    expected = to_numpy(layer(x, x, attention_mask=CAUSAL))
    for mask in (np.tile(CAUSAL, (2, 1, 1)), np.tile(CAUSAL[:, None], (2, 2, 1, 1))):
        for length in (None, 1):
            with blocks_from(length):
                np.testing.assert_allclose(to_numpy(layer(x, attention_mask=mask)), expected, atol=1e-6)
    first_head = np.ones((2, 2, 5, 5), "int32")
    first_head[:, 0, 1] = 0
    first_head[1, :, 2] = 0
    output, weights = layer(x, attention_mask=first_head, return_attention_scores=True)
    weights = to_numpy(weights)
    assert (weights[:, 0, 1] == 0).all() and (weights[0, 1, 1] > 0).all()
    assert (to_numpy(output)[1, 2] == 0).all() and (to_numpy(output)[:, 1] != 0).any(axis=-1).all()


def test_a_mask_of_two_axes_that_is_no_padding_mask_is_rejected():
    with pytest.raises(
        ValueError, match=r"must be \[B, S\], got shape \(5, 5\) for a batch of 2.*mask\[None\]"
    ):
        MultiHeadAttention(2)(_normal(2, 5, 8), attention_mask=CAUSAL[0])


def test_masks_raise_no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        MultiHeadAttention(num_heads=2, key_dim=2)(query=_embedded(IDS), value=_embedded(OTHER_IDS))


@pytest.mark.parametrize("causal", [False, True])
def test_a_window_limits_the_distance(causal):
    """Keras' sliding_window 3 is window 2."""
    x = ops.convert_to_tensor(_normal(1, 6, 8))
    layer = MultiHeadAttention(2, 4, window=2)
    distances = np.arange(6)[:, None] - np.arange(6)
    expected = (np.abs(distances) <= 2) & ((distances >= 0) | (not causal))
    for inputs in ([x], [x, x]):
        _, weights = layer(*inputs, use_causal_mask=causal, return_attention_scores=True)
        np.testing.assert_array_equal(to_numpy(weights)[0, 0] > 0, expected)
    assert MultiHeadAttention.from_config(layer.get_config()).window == 2
    with pytest.raises(ValueError, match="window must be at least 0, got -3"):
        MultiHeadAttention(2, 4, window=-3)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("length", [None, 1], ids=["dense", "blocks"])
def test_a_causal_mask_equals_the_explicit_one(length, dropout):
    x, layer = _normal(2, 5, 8), _filled((2, 5, 8), dropout=dropout)
    more = np.ones((2, 5, 5), bool)
    more[:, 2, 1] = False
    with blocks_from(length):
        for mask, merged in ((None, CAUSAL), (more, more & CAUSAL)):
            found = layer(x, x, attention_mask=mask, use_causal_mask=True)
            expected = layer(x, x, attention_mask=merged)
            np.testing.assert_allclose(to_numpy(found), to_numpy(expected), atol=1e-6)
    _, weights = layer(x, x, use_causal_mask=True, return_attention_scores=True)
    assert (to_numpy(weights)[:, :, ~CAUSAL[0]] == 0).all()


@pytest.mark.parametrize("length", [None, 1], ids=["dense", "blocks"])
def test_unit_kernels_give_the_softmax_of_the_inputs(length):
    size = 8
    layer = MultiHeadAttention(num_heads=size, key_dim=size, dtype="float16")
    layer.build((1, size, size), (1, size, size), (1, size, size))
    repeated = np.tile(np.eye(size), (1, size))
    kernels = {"query_key_value_kernel": np.tile(repeated, 3), "output_kernel": repeated.T}
    for weight in layer.weights:
        if weight.name in kernels:
            weight.assign(kernels[weight.name])
    unit, value = np.eye(size)[None], np.arange(size * size).reshape(1, size, size) / 100
    powers = np.exp(np.eye(size) / np.sqrt(size))
    shares = powers / powers.sum(axis=-1, keepdims=True)
    with blocks_from(length):
        output = layer(query=unit, value=value, key=unit)
    np.testing.assert_allclose(to_numpy(output)[0], shares @ value[0] * size, atol=1e-2)
    _, weights = layer(query=unit, value=value, key=unit, return_attention_scores=True)
    np.testing.assert_allclose(to_numpy(weights)[0], np.tile(shares, (size, 1, 1)), atol=1e-3)


@pytest.mark.parametrize("shape", [(1, 2, 3), (2, 3, 5)], ids=str)
def test_a_symbolic_call_has_the_shapes_of_an_eager_one(shape):
    layer = MultiHeadAttention(num_heads=4, key_dim=2)
    symbols = layer(*(keras.Input(batch_shape=shape) for _ in range(2)), return_attention_scores=True)
    outputs = layer(np.ones(shape), np.ones(shape), return_attention_scores=True)
    assert [x.shape for x in symbols] == [x.shape for x in outputs]


@pytest.mark.parametrize("output_shape", [8, (8, 8)], ids=str)
def test_the_output_shape_is_an_integer_or_several(output_shape):
    layer = MultiHeadAttention(2, 16, output_shape=output_shape)
    sizes = (output_shape,) if isinstance(output_shape, int) else output_shape
    assert layer(query=_normal(2, 4, 16), value=_normal(2, 4, 16)).shape == (2, 4, *sizes)
    inputs = keras.Input((4, 16))
    keras.Model(inputs, layer(inputs)).summary(print_fn=lambda _: None)


@pytest.mark.parametrize("options", [{}, {"value_dim": 5}, {"output_shape": 6}, {"use_bias": False}], ids=str)
@pytest.mark.parametrize("key_size", [8, 7])
def test_separate_keys_equal_keras_with_the_same_weights(key_size, options):
    query, value, key = _normal(3, 5, 8), _normal(3, 4, 8), _normal(3, 4, key_size)
    shapes = [x.shape for x in (query, value, key)]
    layer = _filled(*shapes, **options)
    theirs = keras.layers.MultiHeadAttention(2, 4, **options)
    theirs.build(*shapes)
    kernels, output_kernel, biases, output_bias = projections(layer)
    if layer.use_bias:
        pairs = zip(kernels, biases, strict=True)
        weights = [*(array for pair in pairs for array in pair), output_kernel, output_bias]
    else:
        weights = [*kernels, output_kernel]
    theirs.set_weights(weights)
    mask = np.random.default_rng(1).random((3, 5, 4)) < 0.6
    mask[..., 0] = True

    def outputs(called):
        return run(
            lambda *x: called(*x, attention_mask=mask, return_attention_scores=True), query, value, key
        )

    for found, expected in zip(outputs(layer), outputs(theirs), strict=True):
        np.testing.assert_allclose(to_numpy(found), to_numpy(expected), atol=1e-5)


def test_masks_of_keys_and_values_both_apply():
    query, value, key = _normal(1, 2, 8), _normal(1, 3, 8), _normal(1, 3, 8)
    layer = _filled(query.shape, value.shape, key.shape)
    masks = {"value_mask": np.array([[1, 1, 0]]), "key_mask": np.array([[0, 1, 1]])}
    _, weights = layer(query, value, key, **masks, return_attention_scores=True)
    np.testing.assert_allclose(to_numpy(weights), np.tile([0.0, 1.0, 0.0], (1, 2, 2, 1)))

    def loss(query, value, key):
        return ops.sum(layer(query, value, key, query_mask=np.array([[1, 0]]), **masks) ** 2)

    by_query, by_value, by_key = gradients(loss, query, value, key)
    assert (by_query[0, 1] == 0).all() and (by_value[0, [0, 2]] == 0).all() and (by_value[0, 1] != 0).any()


def test_a_seed_repeats_the_dropout():
    x = _normal(1, 5, 8)
    outputs = []
    for seed in (1, 1, 2):
        layer = _filled(x.shape, dropout=0.5, seed=seed)
        outputs.append(to_numpy(layer(x, training=True)))
    np.testing.assert_array_equal(outputs[0], outputs[1])
    assert (outputs[0] != outputs[2]).any()


def test_a_layer_of_an_earlier_version_is_read():
    config = MultiHeadAttention(2, 3).get_config()
    config["head_dim"] = config.pop("key_dim")
    for name in ("value_dim", "output_shape", "seed"):
        del config[name]
    assert MultiHeadAttention.from_config(config).key_dim == 3
