"""Scores of pairs of texts, as JSON-able Python values; what is undefined is None, never NaN.

The conventions are those of `training.metrics.classification`.
"""

from typing import Any

import numpy as np

from training.metrics.classification import multi_label_scores
from training.metrics.confusion import confusion_matrix


def binary_pair_scores(true: np.ndarray, probabilities: np.ndarray, threshold: float) -> dict[str, Any]:
    """Scores the answers to a yes-or-no question; yes is answered where the probability is at least a threshold.

    Args:
        true: int [R], 0 or 1.
        probabilities: Those of 1, float [R].
        threshold: Compared in float32, as the model does.

    Returns:
        rows, accuracy; f1, precision and recall of 1; roc_auc, average_precision; ece (of the probability of 1,
        15 equal-width bins), loss (mean binary cross-entropy, in nats), threshold, confusion_matrix (rows are
        the truth, 0 first).

    Raises:
        ValueError: Shapes do not fit, a truth is neither 0 nor 1, or a probability is not finite.
    """
    true, probabilities = np.asarray(true), np.asarray(probabilities)
    _check_shapes(true, probabilities)
    if not np.isin(true, (0, 1)).all():
        raise ValueError(f"expected 0 or 1 as the truth, got {true[~np.isin(true, (0, 1))][0]}")
    # A yes-or-no question is a single label that a row may have or lack.
    scores = multi_label_scores(true[:, None], probabilities[:, None], ["1"], np.array([threshold]))
    kept = ("rows", "accuracy", "precision", "recall", "roc_auc", "average_precision", "ece", "loss")
    answers = probabilities.astype(np.float32) >= np.float32(threshold)
    return {name: scores[name] for name in kept} | {
        "f1": scores["macro_f1"],
        "threshold": float(threshold),
        "confusion_matrix": confusion_matrix(true, answers, 2).tolist(),
    }


def graded_scores(true: np.ndarray, scores: np.ndarray) -> dict[str, Any]:
    """Scores guesses of graded relevance.

    Args:
        true: float [R].
        scores: float [R], on the scale of the truth.

    Returns:
        rows; pearson and spearman (equal values share their mean rank), None where one side is constant; mse,
        mae, loss (the mse).

    Raises:
        ValueError: Shapes do not fit or a number is not finite.
    """
    true, scores = np.asarray(true, np.float64), np.asarray(scores, np.float64)
    _check_shapes(true, scores)
    for name, column in (("truth", true), ("score", scores)):
        if not np.isfinite(column).all():
            raise ValueError(f"the {name} of row {int(np.argmin(np.isfinite(column)))} is not finite")
    gaps = scores - true
    mse = float(np.mean(gaps**2)) if len(gaps) else None
    return {
        "rows": len(true),
        "pearson": _correlation(true, scores),
        "spearman": _correlation(_ranks(true), _ranks(scores)),
        "mse": mse,
        "mae": float(np.mean(np.abs(gaps))) if len(gaps) else None,
        "loss": mse,
    }


def _check_shapes(true: np.ndarray, scores: np.ndarray) -> None:
    if true.ndim != 1 or true.shape != scores.shape:
        raise ValueError(f"expected truth and scores of one shape [R], got {true.shape} and {scores.shape}")


def _correlation(left: np.ndarray, right: np.ndarray) -> float | None:
    # Asked of the values themselves: rounding gives the deviations of a constant column a spread.
    if any(not len(side) or side.min() == side.max() for side in (left, right)):
        return None
    left, right = (_deviations(side) for side in (left, right))
    return float(np.clip(left @ right, -1.0, 1.0))


def _deviations(column: np.ndarray) -> np.ndarray:
    """Distances from the mean, of length 1 as a vector."""
    column = column - column.mean()
    column = column / np.abs(column).max()  # squares of very small or large numbers leave float64
    return column / np.linalg.norm(column)


def _ranks(column: np.ndarray) -> np.ndarray:
    _, value, counts = np.unique(column, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2.0)[value]
