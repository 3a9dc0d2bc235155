import keras
import numpy as np
import pytest
from scipy.special import log_softmax, xlogy

from kmha.layers.crf import CRF, log_likelihood
from training.losses.classification import (
    masked_token_loss,
    sigmoid_cross_entropy,
    softmax_cross_entropy,
    tag_sequence_loss,
)

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(scale=3, size=(7, 5)).astype(np.float32)
IDS = RNG.integers(0, 5, 7).astype(np.int32)
SEVERAL = RNG.integers(0, 2, (7, 5)).astype(np.int32)
SMOOTHINGS = [0.0, 0.1, 0.5]


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_softmax_against_keras(smoothing):
    expected = keras.losses.categorical_crossentropy(
        keras.ops.one_hot(IDS, 5), LOGITS, from_logits=True, label_smoothing=smoothing
    )
    losses = softmax_cross_entropy(IDS, LOGITS, smoothing)
    assert losses.shape == (7,)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


def test_softmax_against_scipy():
    expected = -log_softmax(LOGITS.astype(np.float64), axis=-1)[np.arange(7), IDS]
    np.testing.assert_allclose(softmax_cross_entropy(IDS, LOGITS), expected, rtol=1e-5)


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_sigmoid_against_keras(smoothing):
    # Keras averages over the labels; this loss adds.
    expected = 5 * keras.losses.binary_crossentropy(
        SEVERAL.astype(np.float32), LOGITS, from_logits=True, label_smoothing=smoothing
    )
    losses = sigmoid_cross_entropy(SEVERAL, LOGITS, smoothing)
    assert losses.shape == (7,)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


def test_sigmoid_against_its_definition():
    p = 1 / (1 + np.exp(-LOGITS.astype(np.float64)))
    expected = -(xlogy(SEVERAL, p) + xlogy(1 - SEVERAL, 1 - p)).sum(axis=-1)
    np.testing.assert_allclose(sigmoid_cross_entropy(SEVERAL, LOGITS), expected, rtol=1e-4)


@pytest.mark.parametrize("size", [100.0, 1e4, 1e30])
def test_large_logits_give_finite_losses(size):
    logits = np.array([[size, -size]], np.float32)
    right = softmax_cross_entropy(np.array([0], np.int32), logits)
    np.testing.assert_allclose(right, [0.0], atol=1e-6)
    np.testing.assert_allclose(softmax_cross_entropy(np.array([1], np.int32), logits), [2 * size], rtol=1e-5)
    np.testing.assert_allclose(sigmoid_cross_entropy(np.array([[1, 0]], np.int32), logits), [0.0], atol=1e-6)
    np.testing.assert_allclose(
        sigmoid_cross_entropy(np.array([[0, 1]], np.int32), logits), [2 * size], rtol=1e-5
    )


# O, B, I of BIO: only B and I may precede I.
BIO = CRF(3, [[1, 1, 0], [1, 1, 1], [1, 1, 1]], [1, 1, 0], [1, 1, 1])


def potentials_of(words: int):
    if not BIO.built:
        BIO.build((None, None, 3))
    scores = np.random.default_rng(1).normal(size=(2, words, 3)).astype(np.float32)
    return BIO(scores, np.ones((2, words), np.int32))


def test_tag_loss_is_the_sentence_loss_per_word():
    targets = np.array([[0, 1, 2], [1, 0, -1]], np.int32)
    found = keras.ops.convert_to_numpy(tag_sequence_loss(targets, potentials_of(3)))
    potentials = potentials_of(3)._replace(word_mask=(targets >= 0).astype(np.int32))
    expected = -keras.ops.convert_to_numpy(log_likelihood(potentials, np.maximum(targets, 0))) / [3, 2]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    nothing = tag_sequence_loss(np.full((2, 3), -1, np.int32), potentials_of(3))
    assert keras.ops.convert_to_numpy(nothing).tolist() == [0, 0]


def test_a_window_may_begin_inside_a_span():
    """The sum over paths then also has the paths that begin inside a span."""
    inside, outside = np.array([[2, 2], [0, 1]], np.int32), np.array([[1, 2], [0, 1]], np.int32)
    potentials = potentials_of(2)
    found = keras.ops.convert_to_numpy(tag_sequence_loss(inside, potentials))
    assert 0 < found[0] < 10
    freed = keras.ops.convert_to_numpy(potentials.start) * [1, 1, 0]
    expected = -log_likelihood(potentials._replace(start=freed.astype(np.float32)), inside)[0] / 2
    np.testing.assert_allclose(found[0], expected, atol=1e-5)
    # Other sentences may still not begin inside a span.
    assert found[1] == keras.ops.convert_to_numpy(tag_sequence_loss(outside, potentials))[1]


def test_masked_tokens_against_scipy():
    logits = RNG.normal(scale=3, size=(3, 4, 6)).astype(np.float32)
    targets = np.array([[5, 0, 2, 3], [1, -1, -1, -1], [-1] * 4], np.int32)
    losses = -log_softmax(logits.astype(np.float64), axis=-1)
    expected = [
        np.mean([losses[0, slot, token] for slot, token in enumerate(targets[0])]),
        losses[1, 0, 1],
        0,
    ]
    np.testing.assert_allclose(masked_token_loss(targets, logits), expected, rtol=1e-5)
