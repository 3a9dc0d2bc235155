"""Likely label errors, found by confident learning with cleanlab.

A row is reported if a model that was not trained on it is more confident of another label than it is on average for
rows of that label. Source: Northcutt et al. 2021, arXiv:1911.00068.
"""

import importlib.util
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

# With fewer rows the mean confidence of a label is too noisy.
MIN_ROWS = 100


def has_cleanlab() -> bool:
    """Whether cleanlab is installed (extra: report)."""
    return importlib.util.find_spec("cleanlab") is not None


def label_errors(true: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Finds rows of one label each whose label is likely wrong, most likely first.

    Args:
        true: int [N], in [0, C).
        probabilities: float [N, C], of a model that was not trained on the rows.

    Returns:
        int64 indices of rows; none for fewer than 100 rows or fewer than two labels.
    """
    if len(true) < MIN_ROWS or len(np.unique(true)) < 2:
        return np.zeros(0, np.int64)
    probabilities = np.asarray(probabilities, np.float64)
    # cleanlab expects sums of exactly 1; float32 rounds.
    probabilities = probabilities / probabilities.sum(axis=1, keepdims=True)
    from cleanlab.filter import find_label_issues

    labels = np.asarray(true, np.int64)
    return _quietly(find_label_issues, labels, probabilities, return_indices_ranked_by="normalized_margin")


def multi_label_errors(true: np.ndarray, predicted: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Finds rows of several labels of which one is likely wrong, most likely first.

    Args:
        true: 0 or 1, [R, C].
        predicted: 0 or 1, [R, C], the model's decisions by its thresholds; rows with equal labels are never reported.
        probabilities: float [R, C], of a model that was not trained on the rows.

    Returns:
        int64 indices of rows; none for fewer than 100 rows.
    """
    if len(true) < MIN_ROWS:
        return np.zeros(0, np.int64)
    true = np.asarray(true) != 0
    differs = (true != (np.asarray(predicted) != 0)).any(axis=1)
    # Labels that all rows or no rows have carry no information.
    usable = true.any(axis=0) & ~true.all(axis=0)
    if not usable.any():
        return np.zeros(0, np.int64)
    labels = [np.flatnonzero(row).tolist() for row in true[:, usable]]
    probabilities = np.asarray(probabilities, np.float64)[:, usable]
    from cleanlab.multilabel_classification.filter import find_label_issues

    ranked = _quietly(find_label_issues, labels, probabilities, return_indices_ranked_by="self_confidence")
    # cleanlab decides at 0.5; the model's thresholds may differ.
    return ranked[differs[ranked]]


def _quietly(find: Callable[..., Any], *arguments: Any, **options: Any) -> np.ndarray:
    with warnings.catch_warnings():
        # It warns about labels of very few rows, and finds no errors there.
        warnings.simplefilter("ignore", UserWarning)
        # One process: starting others takes longer than they save.
        return np.asarray(find(*arguments, n_jobs=1, **options), np.int64)
