"""Labels that are likely to be wrong, by confident learning: cleanlab finds them, this says of which rows.

A row stands out when the model, which has not trained on it, is surer of another label than it usually is where that
label is the right one. Source: Northcutt et al. 2021, arXiv:1911.00068.
"""

import importlib.util
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

# Fewer tell too little of how sure a model usually is.
LEAST_ROWS = 100


def can_be_found() -> bool:
    """Whether the library is installed (extra: report)."""
    return importlib.util.find_spec("cleanlab") is not None


def label_errors(true: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """The rows whose only label is likely to be wrong, the likeliest first.

    Args:
        true: int [N], in [0, C).
        probabilities: float [N, C], of a model that has not trained on the rows.

    Returns:
        int64, places in the rows; none where there are fewer than 100 rows, or fewer than two labels.
    """
    labels = np.unique(true)
    if len(true) < LEAST_ROWS or len(labels) < 2:
        return np.zeros(0, np.int64)
    probabilities = np.asarray(probabilities, np.float64)
    # float32 rounds: the library wants sums of 1.
    probabilities = probabilities / probabilities.sum(axis=1, keepdims=True)
    from cleanlab.filter import find_label_issues

    return _quietly(
        find_label_issues,
        np.asarray(true, np.int64),
        probabilities,
        return_indices_ranked_by="normalized_margin",
    )


def several_label_errors(true: np.ndarray, given: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """The rows some of whose labels are likely to be wrong, the likeliest first.

    Args:
        true: 0 or 1, [R, C].
        given: Likewise, of the model's decisions by its thresholds; a row whose labels it gives too is not doubted.
        probabilities: float [R, C], of a model that has not trained on the rows.

    Returns:
        int64, places in the rows; none where there are fewer than 100.
    """
    if len(true) < LEAST_ROWS:
        return np.zeros(0, np.int64)
    true = np.asarray(true) != 0
    differs = (true != (np.asarray(given) != 0)).any(axis=1)
    # Of a label that all rows have, or none, nothing can be learnt.
    told = true.any(axis=0) & ~true.all(axis=0)
    if not told.any():
        return np.zeros(0, np.int64)
    labels = [np.flatnonzero(row).tolist() for row in true[:, told]]
    probabilities = np.asarray(probabilities, np.float64)[:, told]
    from cleanlab.multilabel_classification.filter import find_label_issues

    ranked = _quietly(find_label_issues, labels, probabilities, return_indices_ranked_by="self_confidence")
    # The library decides at .5, whatever the thresholds are.
    return ranked[differs[ranked]]


def _quietly(find: Callable[..., Any], *given: Any, **options: Any) -> np.ndarray:
    with warnings.catch_warnings():
        # It warns of labels that hardly any row has; of those it then finds nothing.
        warnings.simplefilter("ignore", UserWarning)
        # One process: a second one costs more than it saves, and would import everything again.
        return np.asarray(find(*given, n_jobs=1, **options), np.int64)
