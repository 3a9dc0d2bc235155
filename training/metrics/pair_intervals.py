"""Bootstrap intervals of the scores of pairs, as in `training.metrics.bootstrap`.

Rows are resampled; for rankings whole queries, since the candidates of a query are not independent. Resamples with an
undefined score (rows of one kind, or a constant column) are left out. A score without any defined resample has no
interval.
"""

from collections.abc import Callable

import numpy as np

from training.metrics.bootstrap import DEFAULT, Resampling, percentile_interval, resample_weights
from training.metrics.pairs import binary_pair_scores, graded_scores
from training.metrics.ranking import query_values

RANKING_NAMES: tuple[str, ...] = ("map", "mrr", "ndcg_at_10")


def binary_pair_intervals(
    true: np.ndarray, probabilities: np.ndarray, threshold: float, resampling: Resampling = DEFAULT
) -> dict[str, list[float]]:
    """Intervals for binary pairs.

    Args:
        true: int [R], 0 or 1.
        probabilities: Of label 1, float [R].
        threshold: Compared in float32.
        resampling: Seed, number of resamples and confidence level.

    Returns:
        accuracy, f1, roc_auc and average_precision, each [lower, upper].

    Raises:
        ValueError: As `training.metrics.pairs.binary_pair_scores`.
    """
    binary_pair_scores(true, probabilities, threshold)  # for its checks
    # Rows with equal probability and label form a group; the highest probability is first.
    values, value = np.unique(-np.asarray(probabilities, np.float64), return_inverse=True)
    cells, sizes = np.unique(2 * value + np.asarray(true, np.int64), return_counts=True)
    positive = (-values).astype(np.float32) >= np.float32(threshold)

    def statistics(weights):
        counts = np.zeros((len(weights), 2 * len(values)))
        counts[:, cells] = weights
        wrong, right = counts[:, ::2], counts[:, 1::2]  # [S, V]
        false_positives, true_positives = wrong @ positive, right @ positive
        wrongs, rights = wrong.sum(axis=1), right.sum(axis=1)
        right_so_far = right.cumsum(axis=1)
        so_far = right_so_far + wrong.cumsum(axis=1)
        # A right and a wrong row of equal probability count as half a pair in order.
        in_order = (wrong * (right_so_far - right / 2.0)).sum(axis=1)
        precisions = right_so_far / np.maximum(so_far, 1.0)
        with np.errstate(invalid="ignore"):  # 0 / 0 gives NaN for a resample with one label
            return {
                "accuracy": (wrongs - false_positives + true_positives) / (wrongs + rights),
                "f1": 2.0 * true_positives / np.maximum(true_positives + false_positives + rights, 1.0),
                "roc_auc": in_order / (wrongs * rights),
                "average_precision": (wrongs * (right * precisions).sum(axis=1)) / (wrongs * rights),
            }

    return _intervals(statistics, sizes, resampling)


def graded_intervals(
    true: np.ndarray, scores: np.ndarray, resampling: Resampling = DEFAULT
) -> dict[str, list[float]]:
    """Intervals for graded pairs.

    Args:
        true: float [R].
        scores: float [R].
        resampling: Seed, number of resamples and confidence level.

    Returns:
        pearson, spearman, mse and mae, each [lower, upper].

    Raises:
        ValueError: As `training.metrics.pairs.graded_scores`.
    """
    graded_scores(true, scores)  # for its checks
    both = np.stack([np.asarray(true, np.float64), np.asarray(scores, np.float64)], axis=1)
    both, sizes = np.unique(both, axis=0, return_counts=True)
    true, scores = both.T
    squares, distances = (scores - true) ** 2, np.abs(scores - true)
    columns = [_Column(side) for side in (true, scores)]

    def statistics(weights):
        rows = weights.sum(axis=1)
        return {
            "pearson": _correlations([column.values(weights) for column in columns], weights),
            "spearman": _correlations([column.ranks(weights) for column in columns], weights),
            "mse": weights @ squares / rows,
            "mae": weights @ distances / rows,
        }

    return _intervals(statistics, sizes, resampling)


def ranking_intervals(
    relevance: np.ndarray, scores: np.ndarray, queries: np.ndarray, resampling: Resampling = DEFAULT
) -> dict[str, list[float]]:
    """Intervals for rankings; resamples the scored queries.

    Args:
        relevance: float [R].
        scores: float [R].
        queries: int [R].
        resampling: Seed, number of resamples and confidence level.

    Returns:
        map, mrr and ndcg_at_10, each [lower, upper]; empty without a scored query.

    Raises:
        ValueError: As `training.metrics.ranking.ranking_scores`.
    """
    values = query_values(relevance, scores, queries).values
    columns = np.stack([values[name] for name in RANKING_NAMES], axis=1)  # [Q, 3]
    columns, sizes = np.unique(columns, axis=0, return_counts=True)

    def statistics(weights):
        means = weights @ columns / sizes.sum()
        return dict(zip(RANKING_NAMES, means.T, strict=True))

    return _intervals(statistics, sizes, resampling)


def _intervals(
    statistics: Callable[[np.ndarray], dict[str, np.ndarray]], sizes: np.ndarray, resampling: Resampling
) -> dict[str, list[float]]:
    """Runs `statistics`, float64 [S, U] -> {name: float64 [S]}, over all resamples; leaves out NaN."""
    if not len(sizes):
        return {}
    chunks = [statistics(weights) for weights in resample_weights(sizes, resampling)]
    intervals = {}
    for name in chunks[0]:
        values = np.concatenate([chunk[name] for chunk in chunks])
        values = values[~np.isnan(values)]
        if len(values):
            intervals[name] = list(percentile_interval(values, resampling.level))
    return intervals


class _Column:
    """Values and ranks of a column in each resample; NaN if all are equal."""

    def __init__(self, column: np.ndarray):
        self._order = np.argsort(column, kind="stable")
        distinct, self._position = np.unique(column, return_inverse=True)
        self._starts = np.searchsorted(column[self._order], distinct)
        middle = distinct.mean() if len(distinct) else 0.0
        self._distinct = distinct - middle
        self._distinct /= np.abs(self._distinct).max(initial=0.0) or 1.0

    def values(self, weights: np.ndarray) -> np.ndarray:
        """Shifted and scaled values, which leaves correlations unchanged: float64 [S, U] -> float64 [S, U]."""
        varies = (self._counts(weights) > 0).sum(axis=1, keepdims=True) > 1
        return np.where(varies, self._distinct[self._position], np.nan)

    def ranks(self, weights: np.ndarray) -> np.ndarray:
        """Average ranks minus 0.5: float64 [S, U] -> float64 [S, U]."""
        counts = self._counts(weights)
        ranks = counts.cumsum(axis=1) - counts / 2.0
        varies = (counts > 0).sum(axis=1, keepdims=True) > 1
        return np.where(varies, ranks, np.nan)[:, self._position]

    def _counts(self, weights: np.ndarray) -> np.ndarray:
        return np.add.reduceat(weights[:, self._order], self._starts, axis=1)


def _correlations(sides: list[np.ndarray], weights: np.ndarray) -> np.ndarray:
    """Pearson correlation in each resample, from two sides and weights, float64 [S, U] each -> float64 [S]."""
    shares = weights / weights.sum(axis=1, keepdims=True)
    left, right = (side - (shares * side).sum(axis=1, keepdims=True) for side in sides)
    lengths = np.sqrt((shares * left**2).sum(axis=1) * (shares * right**2).sum(axis=1))
    # Nearly constant values may have length 0.
    lengths = np.where(lengths > 0, lengths, np.nan)
    return np.clip((shares * left * right).sum(axis=1) / lengths, -1.0, 1.0)
