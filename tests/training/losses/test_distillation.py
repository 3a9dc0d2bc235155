"""Losses between the predictions of a teacher and a student, compared with NumPy in float64."""

import numpy as np
import pytest
import tensorflow as tf

from kmha.layers.crf import FORBIDDEN, Potentials
from tests.kmha.layers.references import every_path, log_of_sum
from training.losses.distillation import (
    chain_divergence,
    sigmoid_divergence,
    softmax_divergence,
    squared_distance,
)

TEMPERATURES = (0.5, 1.0, 4.0)


def softened(logits: np.ndarray, temperature: float) -> np.ndarray:
    powers = np.exp(logits.astype(np.float64) / temperature)
    return powers / powers.sum(axis=-1, keepdims=True)


def divergence(teacher: np.ndarray, student: np.ndarray, temperature: float) -> np.ndarray:
    return temperature**2 * (teacher * (np.log(teacher) - np.log(student))).sum(axis=-1)


def gradient_of(tape: tf.GradientTape, loss, source) -> np.ndarray:
    return tf.convert_to_tensor(tape.gradient(loss, source)).numpy()


@pytest.fixture
def logits() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    teacher, student = rng.normal(0, 3, (2, 5, 4)).astype(np.float32)
    return teacher, student


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_softmax_divergence_by_definition(logits, temperature):
    teacher, student = (softened(each, temperature) for each in logits)
    found = softmax_divergence(logits[0], logits[1], temperature)
    np.testing.assert_allclose(found, divergence(teacher, student, temperature), rtol=1e-4)


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_sigmoid_divergence_by_definition(logits, temperature):
    """Each label is a choice between its logit and 0."""
    pairs = (np.stack([each, np.zeros_like(each)], axis=-1) for each in logits)
    teacher, student = (softened(each, temperature) for each in pairs)
    expected = divergence(teacher, student, temperature).sum(axis=-1)
    np.testing.assert_allclose(sigmoid_divergence(logits[0], logits[1], temperature), expected, rtol=1e-4)


def test_squared_distance_by_definition(logits):
    teacher, student = (each[:, :1] for each in logits)
    np.testing.assert_allclose(
        squared_distance(teacher, student, 9.0), ((teacher - student) ** 2)[:, 0], rtol=1e-6
    )


@pytest.mark.parametrize("loss", [softmax_divergence, sigmoid_divergence, squared_distance])
def test_equal_student_has_no_loss_and_no_gradient(logits, loss):
    student = tf.constant(logits[0])
    with tf.GradientTape() as tape:
        tape.watch(student)
        found = loss(logits[0], student, 2.0)
    np.testing.assert_allclose(found, 0, atol=1e-5)
    np.testing.assert_allclose(gradient_of(tape, found, student), 0, atol=1e-6)


def test_large_logits_stay_finite():
    teacher, student = np.array([[9e3, -9e3]], np.float32), np.array([[-9e3, 9e3]], np.float32)
    for loss in (softmax_divergence, sigmoid_divergence):
        assert np.isfinite(loss(teacher, student, 1.0)).all()


def chains(seed: int) -> tuple[Potentials, Potentials]:
    """Three sentences, one of them without words. No tag may follow the last tag, and no sentence begins with it."""
    rng = np.random.default_rng(seed)
    mask = np.array([[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]], np.int32)

    def one() -> Potentials:
        transitions, start, end = rng.normal(size=(3, 3)), rng.normal(size=3), rng.normal(size=3)
        transitions[2], start[2] = FORBIDDEN, FORBIDDEN
        given = (rng.normal(0, 2, (3, 4, 3)), mask, transitions, start, end)
        return Potentials(*(each if each is mask else each.astype(np.float32) for each in given))

    return one(), one()


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_chain_divergence_over_all_paths(temperature):
    teacher, student = chains(seed=1)
    expected = np.zeros(3)
    for row, length in enumerate(teacher.word_mask.sum(axis=1)):
        if not length:
            continue
        shares = []
        for each in (teacher, student):
            paths, scores = every_path(each.emissions[row, :length], each.transitions, each.start, each.end)
            scores = scores[scores > FORBIDDEN / 2] / temperature
            shares.append(scores - log_of_sum(scores))
        assert len(shares[0]) < len(paths)
        expected[row] = temperature**2 * np.sum(np.exp(shares[0]) * (shares[0] - shares[1])) / length
    np.testing.assert_allclose(
        chain_divergence(teacher, student, temperature), expected, rtol=1e-3, atol=1e-5
    )
    assert (expected[:2] > 0.05).all()


def test_equal_tagger_has_no_loss_and_no_gradient():
    teacher, _ = chains(seed=2)
    emissions, transitions = tf.constant(teacher.emissions), tf.constant(teacher.transitions)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([emissions, transitions])
        student = teacher._replace(emissions=emissions, transitions=transitions)
        found = chain_divergence(teacher, student, 2.0)
    np.testing.assert_allclose(found, 0, atol=1e-5)
    for source in (emissions, transitions):
        np.testing.assert_allclose(gradient_of(tape, found, source), 0, atol=1e-5)


def test_chain_gradient_is_the_difference_of_probabilities():
    """Without transition scores, each word is an independent choice."""
    nothing = np.zeros((3, 3), np.float32), np.zeros(3, np.float32), np.zeros(3, np.float32)
    teacher, student = (Potentials(each.emissions, each.word_mask, *nothing) for each in chains(seed=3))
    emissions = tf.constant(student.emissions)
    with tf.GradientTape() as tape:
        tape.watch(emissions)
        found = tf.reduce_sum(chain_divergence(teacher, student._replace(emissions=emissions), 2.0))
    words = np.maximum(teacher.word_mask.sum(axis=1), 1)[:, None, None]
    expected = 2.0 * (softened(student.emissions, 2.0) - softened(teacher.emissions, 2.0)) / words
    expected *= teacher.word_mask[..., None]
    np.testing.assert_allclose(gradient_of(tape, found, emissions), expected, atol=1e-4)
