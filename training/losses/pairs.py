"""Losses of pairs of texts, one value per row, float32 [B]. `outputs` is float32 [B, 1] unless another shape is named.

`targets` is float32 [B, 2]. Column 0 is the value: 0 or 1, a class id, or a relevance; a row is right if it is above 0.
Column 1 is the number of the row's query. Padding rows of a batch have query -1 and value 0, and never change the loss
of other rows.

The triplet, listwise and contrastive loss compare the rows of a query, so those must be in one batch. Rows that they
cannot compare have loss 0; `training.tasks.match.hard_negatives.comparable_rows` finds them.
"""

from typing import Any, NamedTuple

from keras import ops

from training.losses.classification import sigmoid_cross_entropy, softmax_cross_entropy

_FAR_BELOW = -1e30  # 0 after any softmax, and finite after a subtraction


def binary_cross_entropy(targets, outputs, smoothing: float = 0.0):
    """Binary cross-entropy of values in [0, 1] and logits; the smoothing, in [0, 1), is toward 0.5."""
    return sigmoid_cross_entropy(targets[:, :1], outputs, smoothing)


def cross_entropy(targets, outputs, smoothing: float = 0.0):
    """Cross-entropy of class ids and logits float32 [B, C]; the smoothing is in [0, 1)."""
    return softmax_cross_entropy(ops.cast(targets[:, 0], "int32"), outputs, smoothing)


def mean_squared_error(targets, outputs):
    """Squared difference between score and value."""
    return ops.square(outputs[:, 0] - targets[:, 0])


def triplet(targets, outputs, margin: float):
    """Mean hinge loss of each right row against the wrong rows of its query: max(0, margin - its score + wrong score).

    Other rows have loss 0.

    Source: Schroff et al. 2015, section 3.1, arXiv:1503.03832, with scores instead of distances, and all wrong rows
    of the query in the batch.
    """
    rows = _rows(targets)
    scores = outputs[:, 0]
    gaps = ops.relu(margin - scores[:, None] + scores[None, :])
    wrong = ops.logical_and(rows.same_query, ops.logical_not(rows.right)[None, :])
    count = ops.sum(ops.cast(wrong, "float32"), axis=1)
    means = ops.sum(ops.where(wrong, gaps, 0.0), axis=1) / ops.maximum(count, 1.0)
    return ops.where(rows.right, means, 0.0)


def listwise_softmax(targets, outputs):
    """Cross-entropy between the normalized values of a query's candidates and the softmax of their scores.

    The result is each row's part of the loss of its query; 0 for queries with one candidate or without a right one.

    Source: ListNet's top-one loss, Cao et al. 2007, doi:10.1145/1273496.1273513, with values divided by their sum
    instead of their softmax, so that candidates of value 0 have target 0.
    """
    rows = _rows(targets)
    scores = ops.where(rows.real, outputs[:, 0], 0.0)
    values = ops.where(rows.right, targets[:, 0], 0.0)
    total = ops.sum(ops.where(rows.same_query, values[None, :], 0.0), axis=1)
    shares = ops.where(rows.right, values / ops.where(total > 0, total, 1.0), 0.0)
    return shares * _minus_log_softmax(scores[None, :] - scores[:, None], rows.same_query)


def in_batch_contrastive(targets, outputs):
    """Cross-entropy of each first text's own second text among all second texts of the batch.

    The outputs are the scores of every first text (row) with every second text (column), float32 [B, B]. Other right
    candidates of the same query and padding rows are not counted as negatives. Rows that are not right have loss 0.

    Source: Henderson et al. 2017, section 4.4, arXiv:1705.00652.
    """
    rows = _rows(targets)
    own = _diagonal(targets)
    both_real = ops.logical_and(rows.real[:, None], rows.real[None, :])
    scores = ops.where(both_real, outputs, 0.0)
    also_right = ops.logical_and(rows.same_query, rows.right[None, :])
    counted = ops.logical_or(own, ops.logical_and(both_real, ops.logical_not(also_right)))
    own_scores = ops.sum(ops.where(own, scores, 0.0), axis=1)
    return ops.where(rows.right, _minus_log_softmax(scores - own_scores[:, None], counted), 0.0)


class _Rows(NamedTuple):
    real: Any  # bool [B], false for padding rows
    right: Any  # bool [B]
    same_query: Any  # bool [B, B]


def _rows(targets) -> _Rows:
    queries = targets[:, 1]
    real = queries >= 0
    right = ops.logical_and(real, targets[:, 0] > 0)
    return _Rows(real, right, ops.equal(queries[:, None], queries[None, :]))


def _diagonal(targets):
    positions = ops.arange(ops.shape(targets)[0], dtype="int32")
    return ops.equal(positions[:, None], positions[None, :])


def _minus_log_softmax(leads, counted):
    """Cross-entropy float32 [B] from score differences [B, B] to a row and which of them count, bool [B, B].

    Differences avoid the rounding errors of large scores. The difference of a row to itself is 0.
    """
    return ops.logsumexp(ops.where(counted, leads, _FAR_BELOW), axis=1)
