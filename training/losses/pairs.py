"""Losses of pairs of texts, one number a row; the training step weights and adds them.

`targets` is float32 [B, 2]. Column 0 holds the wanted value: 0 or 1, the id of a class, or a relevance; a row
is right where it is above 0. Column 1 holds the number of the query the row belongs to. Rows that only fill
a batch up have query -1 and value 0: no loss of another row depends on them, whatever their outputs are.

Some losses compare the rows of a query, so those must stand in one batch. Rows that such a loss can learn
nothing from get 0; `training.tasks.match.hard_negatives` finds them beforehand.
"""

from typing import Any, NamedTuple

from keras import ops

from training.losses.classification import sigmoid_cross_entropy, softmax_cross_entropy

_FAR_BELOW = -1e30  # next to a 0 a share of 0 in any softmax, and still finite after a subtraction


def binary_cross_entropy(targets, outputs, smoothing: float = 0.0):
    """Minus the log-probability of the right answer of two.

    Args:
        targets: float32 [B, 2]; the values lie in [0, 1].
        outputs: Logits, float32 [B, 1].
        smoothing: How far the values move from 0 and 1 towards a half, in [0, 1).

    Returns:
        float32 [B], in nats.
    """
    return sigmoid_cross_entropy(targets[:, :1], outputs, smoothing)


def cross_entropy(targets, outputs, smoothing: float = 0.0):
    """Minus the log-probability of the right class.

    Args:
        targets: float32 [B, 2]; the values are ids in [0, C).
        outputs: Logits, float32 [B, C].
        smoothing: Share of the target spread evenly over all classes, in [0, 1).

    Returns:
        float32 [B], in nats.
    """
    return softmax_cross_entropy(ops.cast(targets[:, 0], "int32"), outputs, smoothing)


def mean_squared_error(targets, outputs):
    """Squared distance of the score from the wanted value.

    Args:
        targets: float32 [B, 2].
        outputs: Scores, float32 [B, 1].

    Returns:
        float32 [B], in the unit of the values squared.
    """
    return ops.square(outputs[:, 0] - targets[:, 0])


def triplet(targets, outputs, margin: float):
    """How far the wrong rows of a query come within the margin of a right one.

    Args:
        targets: float32 [B, 2].
        outputs: Scores, float32 [B, 1].
        margin: By how much a right row should lead, above 0.

    Returns:
        float32 [B], in the unit of the scores: for a right row the mean of
        max(0, margin - its score + wrong score) over the wrong rows of its query; 0 for any other row.

    Source: the hinge of Schroff et al. 2015, §3.1, arXiv:1503.03832, with scores for their distances and all
    wrong rows of the batch for their selection.
    """
    rows = _rows(targets)
    scores = outputs[:, 0]
    gaps = ops.relu(margin - scores[:, None] + scores[None, :])
    wrong = ops.logical_and(rows.same_query, ops.logical_not(rows.right)[None, :])
    count = ops.sum(ops.cast(wrong, "float32"), axis=1)
    means = ops.sum(ops.where(wrong, gaps, 0.0), axis=1) / ops.maximum(count, 1.0)
    return ops.where(rows.right, means, 0.0)


def listwise_softmax(targets, outputs):
    """Cross-entropy between the values of a query's candidates, as shares, and the softmax of their scores.

    Args:
        targets: float32 [B, 2]; the values are at least 0.
        outputs: Scores, float32 [B, 1].

    Returns:
        float32 [B], in nats: each row's part of the sum, so that the parts of a query add up to its loss. 0 for
        queries with one candidate or with no right one.

    Source: ListNet's top-one loss, Cao et al. 2007, doi:10.1145/1273496.1273513, with values divided by their
    sum in place of their softmax, so that candidates of value 0 get no share.
    """
    rows = _rows(targets)
    scores = ops.where(rows.real, outputs[:, 0], 0.0)
    values = ops.where(rows.right, targets[:, 0], 0.0)
    total = ops.sum(ops.where(rows.same_query, values[None, :], 0.0), axis=1)
    shares = ops.where(rows.right, values / ops.where(total > 0, total, 1.0), 0.0)
    return shares * _minus_log_softmax(scores[None, :] - scores[:, None], rows.same_query)


def in_batch_contrastive(targets, outputs):
    """Minus the log-probability of a first text's own second text among all second texts of the batch.

    Left out for a right row are the other right answers of its query, which are no wrong ones, and the rows that
    fill the batch up.

    Args:
        targets: float32 [B, 2].
        outputs: Scores of every first text (row) with every second text (column), float32 [B, B].

    Returns:
        float32 [B], in nats; 0 for rows that are not right.

    Source: Henderson et al. 2017, §4.4, arXiv:1705.00652.
    """
    rows = _rows(targets)
    own = _diagonal(targets)
    both_real = ops.logical_and(rows.real[:, None], rows.real[None, :])
    scores = ops.where(both_real, outputs, 0.0)
    also_right = ops.logical_and(rows.same_query, rows.right[None, :])
    kept = ops.logical_or(own, ops.logical_and(both_real, ops.logical_not(also_right)))
    own_scores = ops.sum(ops.where(own, scores, 0.0), axis=1)
    return ops.where(rows.right, _minus_log_softmax(scores - own_scores[:, None], kept), 0.0)


class _Rows(NamedTuple):
    real: Any  # bool [B], false for rows that fill the batch up
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


def _minus_log_softmax(leads, kept):
    """By how much the others lead a row, float32 [B, B], and which of them count, bool [B, B] -> float32 [B].

    Differences lose nothing to rounding where the scores themselves are large. Each row keeps its own 0.
    """
    return ops.logsumexp(ops.where(kept, leads, _FAR_BELOW), axis=1)
