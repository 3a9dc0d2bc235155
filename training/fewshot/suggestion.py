"""Selects the unlabeled texts whose labels help a classifier most."""

import warnings
from collections.abc import Sequence

import numpy as np

# Texts that are clustered for each text to select.
CANDIDATES = 10
# Certain texts have a weight too.
_SMALLEST_WEIGHT = 1e-6


def select_texts(
    probabilities: np.ndarray,
    vectors: np.ndarray,
    count: int,
    seed: int,
    thresholds: Sequence[float] | None = None,
) -> np.ndarray:
    """Selects texts that are uncertain and different from each other.

    The most uncertain texts, ten for each one to select, are clustered by k-means with their uncertainty as weight. The
    text nearest to the center of each cluster is selected. A text is uncertain if its two most probable labels have
    similar probabilities; with several labels, if the probability of a label is close to its threshold.

    Args:
        probabilities: float32 [R, C].
        vectors: float32 [R, D], of length 1.
        count: Number of texts to select.
        seed: Random seed of the first centers.
        thresholds: With several labels, the threshold of each; None: a text has one label.

    Returns:
        Rows, the most uncertain first, int64 [min(count, R)].

    Source: Zhdanov 2019, arXiv:1901.05954.
    """
    count = min(count, len(vectors))
    uncertainty = 1 - _margins(probabilities.astype(np.float64), thresholds)
    rows = np.argsort(-uncertainty, kind="stable")[: CANDIDATES * count]
    weights = np.maximum(uncertainty[rows], _SMALLEST_WEIGHT)
    chosen = nearest_to_centers(vectors[rows], weights, count, seed)
    # Equal vectors give fewer clusters.
    others = np.setdiff1d(np.arange(len(rows)), chosen)[: count - len(chosen)]
    return rows[np.sort(np.concatenate([chosen, others]))]


def _margins(probabilities: np.ndarray, thresholds: Sequence[float] | None) -> np.ndarray:
    """How clear the prediction of each text is: 0 if two decisions are equally good, float64 [R]."""
    if thresholds is not None:
        return np.abs(probabilities - np.asarray(thresholds)).min(axis=1)
    if probabilities.shape[1] == 1:
        return np.ones(len(probabilities))
    second, first = np.partition(probabilities, -2, axis=1)[:, -2:].T
    return first - second


def nearest_to_centers(vectors: np.ndarray, weights: np.ndarray, count: int, seed: int) -> np.ndarray:
    """The vector nearest to the center of each cluster of weighted k-means.

    Args:
        vectors: float32 [R, D].
        weights: Positive, float [R].
        count: Number of clusters, at most R.
        seed: Random seed of the first centers.

    Returns:
        Distinct indices of vectors, int64 [count], or fewer if there are fewer different vectors.
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        fitted = KMeans(count, n_init=1, random_state=seed).fit(vectors, sample_weight=weights)
    distances = np.linalg.norm(vectors - fitted.cluster_centers_[fitted.labels_], axis=1)
    # Sorted by cluster, then by distance: the first of each cluster.
    order = np.lexsort((distances, fitted.labels_))
    return order[np.unique(fitted.labels_[order], return_index=True)[1]]
