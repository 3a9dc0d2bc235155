from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax

from training.losses.classification import softmax_cross_entropy
from training.losses.pairs import (
    binary_cross_entropy,
    cross_entropy,
    in_batch_contrastive,
    listwise_softmax,
    mean_squared_error,
    triplet,
)


def _triplet(targets, outputs):
    return triplet(targets, outputs, 0.5)


SINGLE = {
    "binary": binary_cross_entropy,
    "classes": cross_entropy,
    "squares": mean_squared_error,
    "triplet": _triplet,
    "listwise": listwise_softmax,
    "contrastive": in_batch_contrastive,
}
BY_QUERY = ("triplet", "listwise", "contrastive")
CLASSES = 3


def _batch(name, rows, seed, fillers=0, scale=2.0):
    """Targets and outputs that the loss takes; the last rows fill the batch up."""
    generator = np.random.default_rng(seed)
    most = {"binary": 2, "classes": CLASSES}.get(name, 4)
    values = generator.integers(most, size=rows).astype(np.float32)
    queries = generator.integers(4, size=rows).astype(np.float32)
    if fillers:
        values[-fillers:], queries[-fillers:] = 0, -1
    width = {"classes": CLASSES, "contrastive": rows}.get(name, 1)
    outputs = (scale * generator.normal(size=(rows, width))).astype(np.float32)
    return np.stack([values, queries], axis=1), outputs


def _by_loops(name, targets, outputs):
    """The three losses of a query as their definitions read, in float64."""
    values, queries = targets.astype(float).T
    scores = outputs[:, 0].astype(float)
    losses = np.zeros(len(values))
    for i in range(len(values)):
        if values[i] <= 0:
            continue
        mine = [j for j in range(len(values)) if queries[j] == queries[i]]
        if name == "triplet":
            gaps = [max(0.0, 0.5 - scores[i] + scores[j]) for j in mine if values[j] == 0]
            losses[i] = np.mean(gaps) if gaps else 0.0
        elif name == "listwise":
            shares = values[mine] / values[mine].sum()
            losses[i] = -(shares * log_softmax(scores[mine]))[mine.index(i)]
        else:
            columns = [i] + [
                j
                for j in range(len(values))
                if j != i and queries[j] >= 0 and not (j in mine and values[j] > 0)
            ]
            losses[i] = -log_softmax(outputs[i, columns].astype(float))[0]
    return losses


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_binary_against_keras(smoothing):
    targets, outputs = _batch("binary", 9, 0)
    expected = keras.losses.binary_crossentropy(
        targets[:, :1], outputs, from_logits=True, label_smoothing=smoothing
    )
    np.testing.assert_allclose(binary_cross_entropy(targets, outputs, smoothing), expected, rtol=1e-5)


def test_classes_are_the_ids_in_the_first_column():
    targets, outputs = _batch("classes", 9, 0)
    expected = softmax_cross_entropy(targets[:, 0].astype(np.int32), outputs, 0.1)
    np.testing.assert_array_equal(cross_entropy(targets, outputs, 0.1), expected)


def test_mean_squared_error_by_hand():
    targets = np.array([[2.5, 0], [-1, 0]], np.float32)
    losses = mean_squared_error(targets, np.array([[3.0], [1.0]], np.float32))
    np.testing.assert_allclose(losses, [0.25, 4.0])


def test_triplet_by_hand():
    # Query 0: the right 1.0 leads .8 by less than the margin and 0.0 by more; query 1 has only right rows,
    # query 2 only wrong ones.
    targets = np.array([[1, 0], [0, 0], [0, 0], [1, 1], [1, 1], [0, 2]], np.float32)
    outputs = np.array([[1.0], [0.8], [0.0], [-5.0], [5.0], [9.0]], np.float32)
    np.testing.assert_allclose(_triplet(targets, outputs), [0.15, 0, 0, 0, 0, 0], rtol=1e-6)


def test_listwise_by_hand():
    # Scores log 1, log 2, log 5: the softmax is 1/8, 2/8, 5/8; the shares are 1/4, 3/4, 0.
    targets = np.array([[1, 0], [3, 0], [0, 0], [2, 1], [0, 2], [0, 2]], np.float32)
    outputs = np.log(np.array([[1], [2], [5], [7], [1], [2]], np.float32))
    losses = np.asarray(listwise_softmax(targets, outputs))
    np.testing.assert_allclose(losses, [np.log(8) / 4, np.log(4) * 3 / 4, 0, 0, 0, 0], rtol=1e-6, atol=1e-7)


def test_contrastive_by_hand():
    # Rows 0 and 1 are both right for query 0, so neither is a negative for the other. Row 2 is a wrong candidate of
    # query 0 and row 3 a right one of query 1: both are negatives for rows 0 and 1.
    targets = np.array([[1, 0], [1, 0], [0, 0], [1, 1], [0, -1]], np.float32)
    outputs = np.log(
        np.array(
            [[1, 9, 2, 3, 9], [9, 2, 3, 5, 9], [1, 1, 1, 1, 1], [1, 2, 3, 4, 9], [1, 1, 1, 1, 1]], np.float32
        )
    )
    expected_losses = -np.log([1 / 6, 2 / 10, 1, 4 / 10, 1])
    np.testing.assert_allclose(in_batch_contrastive(targets, outputs), expected_losses, rtol=1e-6, atol=1e-7)


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(BY_QUERY),
    rows=st.integers(1, 12),
    fillers=st.integers(0, 3),
    seed=st.integers(0, 10_000),
)
def test_losses_of_queries_equal_plain_loops(name, rows, fillers, seed):
    targets, outputs = _batch(name, rows, seed, min(fillers, rows))
    losses = SINGLE[name](targets, outputs)
    np.testing.assert_allclose(losses, _by_loops(name, targets, outputs), rtol=1e-4, atol=1e-5)


def test_row_losses_of_a_query_sum_to_its_cross_entropy():
    targets, outputs = _batch("listwise", 6, 4)
    targets[:, 1] = 0
    shares = targets[:, 0] / targets[:, 0].sum()
    expected = -(shares * log_softmax(outputs[:, 0].astype(float))).sum()
    np.testing.assert_allclose(np.sum(listwise_softmax(targets, outputs)), expected, rtol=1e-5)


@settings(max_examples=40, deadline=None)
@given(name=st.sampled_from(list(SINGLE)), rows=st.integers(1, 10), seed=st.integers(0, 10_000))
def test_the_order_of_rows_does_not_matter(name, rows, seed):
    targets, outputs = _batch(name, rows, seed)
    order = np.random.default_rng(seed + 1).permutation(rows)
    moved = outputs[np.ix_(order, order)] if name == "contrastive" else outputs[order]
    expected = np.asarray(SINGLE[name](targets, outputs))[order]
    np.testing.assert_allclose(SINGLE[name](targets[order], moved), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("filling", [0.0, 1e30, -1e30, np.nan, np.inf])
@pytest.mark.parametrize("name", list(SINGLE))
def test_padding_rows_change_no_loss_and_no_gradient(name, filling):
    targets, outputs = _batch(name, 8, 3, fillers=2)
    alone = np.asarray(outputs[:6, :6] if name == "contrastive" else outputs[:6])
    outputs[6:] = filling
    if name == "contrastive":
        outputs[:, 6:] = filling
    losses, gradient = _with_gradient(SINGLE[name], targets, outputs, rows=6)
    expected, expected_gradient = _with_gradient(SINGLE[name], targets[:6], alone, rows=6)
    np.testing.assert_allclose(losses[:6], expected, rtol=1e-6)
    np.testing.assert_allclose(gradient[:6, : alone.shape[1]], expected_gradient, rtol=1e-5, atol=1e-7)
    if name in BY_QUERY:
        np.testing.assert_array_equal(losses[6:], 0.0)
        np.testing.assert_array_equal(gradient[6:], 0.0)


@pytest.mark.parametrize("scale", [1e4, 1e15])
@pytest.mark.parametrize("name", list(SINGLE))
def test_extreme_scores_give_finite_losses_and_gradients(name, scale):
    targets, outputs = _batch(name, 12, 5, fillers=1, scale=scale)
    losses, gradient = _with_gradient(SINGLE[name], targets, outputs, rows=12)
    assert np.isfinite(losses).all() and np.isfinite(gradient).all()
    assert np.abs(gradient).max() > 0


@pytest.mark.parametrize("name", BY_QUERY)
def test_a_common_large_offset_costs_no_precision(name):
    targets, outputs = _batch(name, 10, 6)
    outputs = np.round(outputs * 8) / 8  # so that the sum with the offset is exact
    losses = SINGLE[name](targets, outputs + np.float32(2**16))
    np.testing.assert_allclose(losses, SINGLE[name](targets, outputs), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", list(SINGLE))
def test_eager_graph_and_xla_agree_for_any_batch_size(name):
    loss = SINGLE[name]
    width = {"classes": CLASSES}.get(name, None if name == "contrastive" else 1)
    shapes = [tf.TensorSpec([None, 2], tf.float32), tf.TensorSpec([None, width], tf.float32)]
    graph = tf.function(loss, input_signature=shapes)
    compiled = tf.function(loss, jit_compile=True)
    for rows in (1, 7):
        targets, outputs = _batch(name, rows, 8, fillers=rows // 3)
        eager = loss(tf.constant(targets), tf.constant(outputs))
        assert eager.shape == (rows,) and eager.dtype == tf.float32
        for other in (graph, compiled):
            np.testing.assert_allclose(
                other(tf.constant(targets), tf.constant(outputs)), eager, rtol=1e-5, atol=1e-6
            )


@pytest.mark.parametrize("name", list(SINGLE))
def test_gradient_descent_fits_16_rows(name):
    targets, outputs = _batch(name, 16, 9, scale=0.1)
    targets = tf.constant(targets)
    # The least a loss can reach: for lists the entropy of the shares.
    floor = _entropies(targets.numpy()) if name == "listwise" else 0.0
    free = tf.Variable(tf.constant(outputs))

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(SINGLE[name](targets, free))
        gradient: Any = tape.gradient(loss, free)
        free.assign_sub(0.3 * gradient)
        return loss

    first = float(step())
    for _ in range(500):
        last = float(step())
    assert first - floor > 0.3
    assert last - floor < 0.05 * (first - floor)


def _entropies(targets):
    """The summed entropies of the values' shares in each query, with natural logarithms."""
    total = 0.0
    for query in np.unique(targets[:, 1]):
        values = targets[targets[:, 1] == query, 0]
        shares = values[values > 0] / values.sum()
        total -= (shares * np.log(shares)).sum()
    return float(total)


def _with_gradient(loss, targets, outputs, rows):
    """Losses, and the gradient of the sum of the first rows' losses, as a step with weights takes it."""
    outputs = tf.constant(outputs)
    with tf.GradientTape() as tape:
        tape.watch(outputs)
        losses = loss(tf.constant(targets), outputs)
        total = tf.reduce_sum(losses[:rows])
    gradient: Any = tape.gradient(total, outputs)
    return losses.numpy(), gradient.numpy()
