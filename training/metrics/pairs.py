"""Scores of pairs of texts as JSON values, with the conventions of `training.metrics.classification`."""

from typing import Any

import numpy as np
from scipy.stats import rankdata

from training.metrics.classification import multi_label_scores
from training.metrics.confusion import confusion_matrix


def binary_pair_scores(true: np.ndarray, probabilities: np.ndarray, threshold: float) -> dict[str, Any]:
    """Scores binary pairs; a pair is predicted to match if its probability reaches the threshold.

    Args:
        true: int [R], 0 or 1.
        probabilities: Of label 1, float [R].
        threshold: Compared in float32, as the model does.

    Returns:
        rows, accuracy; f1, precision and recall of label 1; roc_auc, average_precision; ece (of the probability of 1,
        15 equal-width bins), loss (mean binary cross-entropy), threshold, confusion_matrix (rows are true labels).

    Raises:
        ValueError: Shapes do not fit, a label is neither 0 nor 1, or a probability is not finite.
    """
    true, probabilities = np.asarray(true), np.asarray(probabilities)
    _check_shapes(true, probabilities)
    if not np.isin(true, (0, 1)).all():
        raise ValueError(f"labels: expected 0 or 1, got {true[~np.isin(true, (0, 1))][0]}")
    scores = multi_label_scores(true[:, None], probabilities[:, None], ["1"], np.array([threshold]))
    names = ("rows", "accuracy", "precision", "recall", "roc_auc", "average_precision", "ece", "loss")
    predicted = probabilities.astype(np.float32) >= np.float32(threshold)
    return {name: scores[name] for name in names} | {
        "f1": scores["macro_f1"],
        "threshold": float(threshold),
        "confusion_matrix": confusion_matrix(true, predicted, 2).tolist(),
    }


def graded_scores(true: np.ndarray, scores: np.ndarray) -> dict[str, Any]:
    """Scores graded pairs.

    Args:
        true: float [R].
        scores: float [R], on the same scale.

    Returns:
        rows; pearson and spearman (equal values get their mean rank), None if one side is constant; mse, mae, loss
        (the mse).

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
        "spearman": _correlation(rankdata(true), rankdata(scores)),
        "mse": mse,
        "mae": float(np.mean(np.abs(gaps))) if len(gaps) else None,
        "loss": mse,
    }


def _check_shapes(true: np.ndarray, scores: np.ndarray) -> None:
    if true.ndim != 1 or true.shape != scores.shape:
        raise ValueError(f"expected truth and scores of one shape [R], got {true.shape} and {scores.shape}")


def _correlation(left: np.ndarray, right: np.ndarray) -> float | None:
    # Compare the values: after rounding, the deviations of a constant column may differ.
    if any(not len(side) or side.min() == side.max() for side in (left, right)):
        return None
    left, right = (_deviations(side) for side in (left, right))
    return float(np.clip(left @ right, -1.0, 1.0))


def _deviations(column: np.ndarray) -> np.ndarray:
    """Deviations from the mean, normalized to length 1."""
    column = column - column.mean()
    column = column / np.abs(column).max()  # avoids overflow and underflow of the squares
    return column / np.linalg.norm(column)
