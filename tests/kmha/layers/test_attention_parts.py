"""Selection of the attention implementation of a layer, and equality of all implementations."""

import numpy as np
import pytest
from keras import ops

from kmha.layers import attention, long_attention
from kmha.layers.attention import MultiHeadAttention
from kmha.layers.attention_parts import LONG_FROM, blocks_from, uses_blocks
from tests.layer_checks import BACKEND, fill_weights, gradients, run, to_numpy

B, T, D = 2, 21, 8
GENERATOR = np.random.default_rng(5)
HIDDEN = GENERATOR.normal(size=(B, T, D)).astype("float32")
OTHER = GENERATOR.normal(size=(B, 9, D)).astype("float32")
MASK = np.ones((B, T), "int32")
MASK[1, 13:] = 0


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(long_attention, "LARGEST_BLOCK", 8)
    monkeypatch.setattr(long_attention, "SMALLEST_BLOCK", 4)


def test_lengths_decide_or_the_maximum_if_they_are_unknown():
    assert not uses_blocks(LONG_FROM - 1, LONG_FROM, None) and uses_blocks(LONG_FROM, LONG_FROM, None)
    # The same number of pairs, with texts of different lengths.
    assert uses_blocks(LONG_FROM // 4, 4 * LONG_FROM, None)
    unknown = object()
    assert uses_blocks(unknown, 3, None) and uses_blocks(unknown, 3, LONG_FROM)
    assert not uses_blocks(unknown, 3, LONG_FROM - 1)
    with blocks_from(None):
        assert not uses_blocks(10**6, 10**6, None)
    with blocks_from(5):
        assert uses_blocks(5, 5, None) and not uses_blocks(4, 5, None)


@pytest.mark.parametrize(
    "options",
    [{}, {"rotary": True}, {"window": 3, "num_globals": 1}, {"window": 2, "use_bias": False}],
    ids=str,
)
@pytest.mark.parametrize(
    "mask", [None, MASK, np.tril(np.ones((B, T, T), "int32"))], ids=["none", "BT", "BTT"]
)
def test_a_layer_in_blocks_equals_dense_attention(options, mask):
    layer = MultiHeadAttention(2, **options)
    layer.build(HIDDEN.shape)
    fill_weights(layer)

    def called(length, **arguments):
        def call(x):
            with blocks_from(length):
                return layer(x, attention_mask=mask, **arguments)

        return call

    expected = to_numpy(run(called(None), HIDDEN))
    with_weights, weights = run(called(1, return_attention_weights=True), HIDDEN)
    np.testing.assert_allclose(to_numpy(with_weights), expected, atol=1e-6)
    assert weights.shape == (B, 2, T, T)
    np.testing.assert_allclose(to_numpy(run(called(1), HIDDEN)), expected, atol=1e-5)
    by, reference = (
        gradients(lambda x, length=length: ops.sum(called(length)(x) ** 2), HIDDEN)[0] for length in (1, None)
    )
    np.testing.assert_allclose(by, reference, atol=1e-4)


def test_cross_attention_in_blocks_is_equal_and_has_no_window():
    layer = MultiHeadAttention(2, window=1)
    layer.build(HIDDEN.shape, OTHER.shape)
    fill_weights(layer)
    plain = MultiHeadAttention(2)
    plain.build(HIDDEN.shape, OTHER.shape)
    plain.set_weights(layer.get_weights())
    expected = to_numpy(run(lambda x, y: plain(x, y), HIDDEN, OTHER))
    for length in (1, None):
        with blocks_from(length):
            np.testing.assert_allclose(to_numpy(layer(HIDDEN, OTHER)), expected, atol=1e-5)


@pytest.mark.skipif(BACKEND == "jax", reason="the seed's state is moved by hand")
@pytest.mark.parametrize("window", [None, 3])
def test_training_drops_weights_in_blocks_too(window, monkeypatch):
    layer = MultiHeadAttention(2, dropout=0.5, window=window)
    layer.build(HIDDEN.shape)
    fill_weights(layer)
    with blocks_from(1):
        expected = to_numpy(layer(HIDDEN[:1]))
        drawn = to_numpy(layer(HIDDEN[:1].repeat(300, axis=0), training=True))
        assert (to_numpy(layer(HIDDEN, training=True)) != drawn[:1]).any()
    assert (drawn[0] != drawn[1]).any()
    # The mean over draws is the output without dropout, within the noise of so many.
    noise = drawn.std(axis=0) / np.sqrt(len(drawn))
    assert (np.abs(drawn.mean(axis=0) - expected[0]) < 5 * noise + 1e-5).all()

    def refuse(*_):
        raise AssertionError("over all pairs")

    monkeypatch.setattr(attention, "scaled_dot_product_attention", refuse)
    with blocks_from(1):
        layer(HIDDEN, training=True)
    with pytest.raises(AssertionError, match="over all pairs"):
        layer(HIDDEN, training=True)
