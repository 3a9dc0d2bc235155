import keras
import numpy as np
import pytest
from scipy.special import log_softmax, xlogy

from training.losses import sigmoid_cross_entropy, softmax_cross_entropy

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
    # Keras averages over the labels where we add.
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
def test_huge_logits_give_finite_losses(size):
    logits = np.array([[size, -size]], np.float32)
    right = softmax_cross_entropy(np.array([0], np.int32), logits)
    np.testing.assert_allclose(right, [0.0], atol=1e-6)
    np.testing.assert_allclose(softmax_cross_entropy(np.array([1], np.int32), logits), [2 * size], rtol=1e-5)
    np.testing.assert_allclose(sigmoid_cross_entropy(np.array([[1, 0]], np.int32), logits), [0.0], atol=1e-6)
    np.testing.assert_allclose(
        sigmoid_cross_entropy(np.array([[0, 1]], np.int32), logits), [2 * size], rtol=1e-5
    )
