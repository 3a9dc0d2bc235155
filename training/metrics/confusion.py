"""Counts of predictions, precision, recall and F1; the last axis is the label (C), leading axes are allowed."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class LabelCounts(NamedTuple):
    """Numbers of rows per label, float64 [..., C] each."""

    hits: np.ndarray  # the label is true and predicted
    predicted: np.ndarray
    actual: np.ndarray


def confusion_matrix(true_ids: np.ndarray, predicted_ids: np.ndarray, num_labels: int) -> np.ndarray:
    """Counts rows, ids int [R], by true label (rows) and predicted label (columns): int64 [C, C]."""
    cells = np.asarray(true_ids, np.int64) * num_labels + np.asarray(predicted_ids, np.int64)
    return np.bincount(cells, minlength=num_labels**2).reshape(num_labels, num_labels)


def id_counts(true_ids: np.ndarray, predicted_ids: np.ndarray, num_labels: int) -> LabelCounts:
    """The label counts of rows with one label each, ids int64 [R], without a matrix."""
    hits = true_ids[true_ids == predicted_ids]
    return LabelCounts(
        *(
            np.bincount(ids, minlength=num_labels).astype(np.float64)
            for ids in (hits, predicted_ids, true_ids)
        )
    )


def matrix_counts(matrix: np.ndarray) -> LabelCounts:
    """The label counts of a confusion matrix [C, C] (rows are true labels)."""
    matrix = np.asarray(matrix, np.float64)
    return LabelCounts(np.diagonal(matrix).copy(), matrix.sum(axis=0), matrix.sum(axis=1))


def indicator_counts(
    true: np.ndarray, predicted: np.ndarray, weights: np.ndarray | None = None
) -> LabelCounts:
    """Counts labels over rows with several labels, 0 or 1, [R, C].

    `weights` are the number of each row in each of S resamples, float [S, R], for counts [S, C]; None: counts [C].
    """
    true = np.asarray(true, np.float64)
    predicted = np.asarray(predicted, np.float64)
    if weights is None:
        return LabelCounts((true * predicted).sum(axis=0), predicted.sum(axis=0), true.sum(axis=0))
    return LabelCounts(weights @ (true * predicted), weights @ predicted, weights @ true)


def precision(counts: LabelCounts) -> np.ndarray:
    """Precision [..., C]; 0 for a label that is never predicted."""
    return _ratio(counts.hits, counts.predicted)


def recall(counts: LabelCounts) -> np.ndarray:
    """Recall [..., C]; 0 for a label that is never true."""
    return _ratio(counts.hits, counts.actual)


def f1(counts: LabelCounts) -> np.ndarray:
    """F1 [..., C]; 0 for a label without hits."""
    return _ratio(2.0 * counts.hits, counts.predicted + counts.actual)


def scores_by_name(counts: LabelCounts) -> dict[str, np.ndarray]:
    """Precision, recall and F1, [..., C] each."""
    return {"precision": precision(counts), "recall": recall(counts), "f1": f1(counts)}


def scores_by_label(counts: LabelCounts, labels: Sequence[str]) -> dict[str, dict[str, float | int]]:
    """Precision, recall, F1 and support of each label as JSON values."""
    columns = scores_by_name(counts)
    return {
        label: {name: float(column[place]) for name, column in columns.items()}
        | {"support": int(counts.actual[place])}
        for place, label in enumerate(labels)
    }


def micro_f1(counts: LabelCounts) -> np.ndarray:
    """F1 of all (row, label) decisions pooled, [...]."""
    return f1(LabelCounts(*(part.sum(axis=-1) for part in counts)))


def occurring(counts: LabelCounts) -> np.ndarray:
    """Whether each label is true or predicted at least once, bool [..., C]."""
    return (counts.predicted + counts.actual) > 0


def mean_over(values: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Mean of values [..., C] over the chosen labels (bool or weights [..., C]); 0 if none is chosen."""
    chosen = np.asarray(chosen, np.float64)
    return _ratio((values * chosen).sum(axis=-1), chosen.sum(axis=-1))


def _ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    shape = np.broadcast_shapes(np.shape(numerator), np.shape(denominator))
    return np.divide(numerator, denominator, out=np.zeros(shape), where=np.asarray(denominator) > 0)
