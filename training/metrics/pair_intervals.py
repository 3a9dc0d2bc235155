"""Bootstrap intervals of the scores of pairs, with the conventions of `training.metrics.bootstrap`.

What is resampled are rows, and for rankings whole queries: the candidates of a query are no independent draws.
A resample in which a score is undefined (one kind of rows only, or a constant side) is left out of the score's
interval; a score that is undefined on the rows themselves is so in all resamples and has no interval.
"""

from collections.abc import Callable

import numpy as np

from training.metrics.bootstrap import percentile_interval, resample_weights
from training.metrics.pairs import binary_pair_scores, graded_scores
from training.metrics.ranking import query_values

RANKING_NAMES: tuple[str, ...] = ("map", "mrr", "ndcg_at_10")


def binary_pair_intervals(
    true: np.ndarray,
    probabilities: np.ndarray,
    threshold: float,
    *,
    seed: int = 0,
    resamples: int = 1000,
    level: float = 0.95,
) -> dict[str, list[float]]:
    """Gives intervals for the answers to a yes-or-no question.

    Args:
        true: int [R], 0 or 1.
        probabilities: Those of 1, float [R].
        threshold: Compared in float32.
        seed: Makes the intervals repeatable.
        resamples: Number of resamples.
        level: Probability mass inside each interval, in (0, 1).

    Returns:
        accuracy, f1, roc_auc and average_precision, each [lower, upper].

    Raises:
        ValueError: As `training.metrics.pairs.binary_pair_scores`.
    """
    binary_pair_scores(true, probabilities, threshold)  # for its checks
    # Rows that are equally probable and equally true are alike; the most probable come first.
    values, value = np.unique(-np.asarray(probabilities, np.float64), return_inverse=True)
    cells, sizes = np.unique(2 * value + np.asarray(true, np.int64), return_counts=True)
    yes = (-values).astype(np.float32) >= np.float32(threshold)

    def statistics(weights):
        counts = np.zeros((len(weights), 2 * len(values)))
        counts[:, cells] = weights
        wrong, right = counts[:, ::2], counts[:, 1::2]  # [S, V]
        false_yes, true_yes = wrong @ yes, right @ yes
        wrongs, rights = wrong.sum(axis=1), right.sum(axis=1)
        right_so_far = right.cumsum(axis=1)
        so_far = right_so_far + wrong.cumsum(axis=1)
        # Of a right and a wrong row of equal probability half the pairs count as in order.
        in_order = (wrong * (right_so_far - right / 2.0)).sum(axis=1)
        precisions = right_so_far / np.maximum(so_far, 1.0)
        with np.errstate(invalid="ignore"):  # 0 / 0 is the NaN of a resample with one kind of rows
            return {
                "accuracy": (wrongs - false_yes + true_yes) / (wrongs + rights),
                "f1": 2.0 * true_yes / np.maximum(true_yes + false_yes + rights, 1.0),
                "roc_auc": in_order / (wrongs * rights),
                "average_precision": (wrongs * (right * precisions).sum(axis=1)) / (wrongs * rights),
            }

    return _intervals(statistics, sizes, seed, resamples, level)


def graded_intervals(
    true: np.ndarray,
    scores: np.ndarray,
    *,
    seed: int = 0,
    resamples: int = 1000,
    level: float = 0.95,
) -> dict[str, list[float]]:
    """Gives intervals for guesses of graded relevance.

    Args:
        true: float [R].
        scores: float [R].
        seed: Makes the intervals repeatable.
        resamples: Number of resamples.
        level: Probability mass inside each interval, in (0, 1).

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

    return _intervals(statistics, sizes, seed, resamples, level)


def ranking_intervals(
    relevance: np.ndarray,
    scores: np.ndarray,
    queries: np.ndarray,
    *,
    seed: int = 0,
    resamples: int = 1000,
    level: float = 0.95,
) -> dict[str, list[float]]:
    """Gives intervals for rankings; resampled are the judged queries.

    Args:
        relevance: float [R].
        scores: float [R].
        queries: int [R].
        seed: Makes the intervals repeatable.
        resamples: Number of resamples.
        level: Probability mass inside each interval, in (0, 1).

    Returns:
        map, mrr and ndcg_at_10, each [lower, upper]; empty without a query to judge.

    Raises:
        ValueError: As `training.metrics.ranking.ranking_scores`.
    """
    values = query_values(relevance, scores, queries).values
    columns = np.stack([values[name] for name in RANKING_NAMES], axis=1)  # [Q, 3]
    columns, sizes = np.unique(columns, axis=0, return_counts=True)

    def statistics(weights):
        means = weights @ columns / sizes.sum()
        return dict(zip(RANKING_NAMES, means.T, strict=True))

    return _intervals(statistics, sizes, seed, resamples, level)


def _intervals(
    statistics: Callable[[np.ndarray], dict[str, np.ndarray]],
    sizes: np.ndarray,
    seed: int,
    resamples: int,
    level: float,
) -> dict[str, list[float]]:
    """Runs `statistics`, float64 [S, U] -> float64 [S] a name, over resamples; NaN is left out."""
    if not len(sizes):
        return {}
    chunks = [statistics(weights) for weights in resample_weights(sizes, seed, resamples)]
    intervals = {}
    for name in chunks[0]:
        values = np.concatenate([chunk[name] for chunk in chunks])
        values = values[~np.isnan(values)]
        if len(values):
            intervals[name] = list(percentile_interval(values, level))
    return intervals


class _Column:
    """One side of graded rows: its values and ranks within each resample; NaN where all of it is equal."""

    def __init__(self, column: np.ndarray):
        self._order = np.argsort(column, kind="stable")
        distinct, self._position = np.unique(column, return_inverse=True)
        self._starts = np.searchsorted(column[self._order], distinct)
        middle = distinct.mean() if len(distinct) else 0.0
        self._distinct = distinct - middle
        self._distinct /= np.abs(self._distinct).max(initial=0.0) or 1.0

    def values(self, weights: np.ndarray) -> np.ndarray:
        """Moved and scaled, which no correlation notices: float64 [S, U] -> float64 [S, U]."""
        varies = (self._counts(weights) > 0).sum(axis=1, keepdims=True) > 1
        return np.where(varies, self._distinct[self._position], np.nan)

    def ranks(self, weights: np.ndarray) -> np.ndarray:
        """Mean ranks of equal values, less a half: float64 [S, U] -> float64 [S, U]."""
        counts = self._counts(weights)
        ranks = counts.cumsum(axis=1) - counts / 2.0
        varies = (counts > 0).sum(axis=1, keepdims=True) > 1
        return np.where(varies, ranks, np.nan)[:, self._position]

    def _counts(self, weights: np.ndarray) -> np.ndarray:
        return np.add.reduceat(weights[:, self._order], self._starts, axis=1)


def _correlations(sides: list[np.ndarray], weights: np.ndarray) -> np.ndarray:
    """Pearson's correlation in each resample; float64 [S, U] twice and float64 [S, U] -> float64 [S]."""
    shares = weights / weights.sum(axis=1, keepdims=True)
    left, right = (side - (shares * side).sum(axis=1, keepdims=True) for side in sides)
    lengths = np.sqrt((shares * left**2).sum(axis=1) * (shares * right**2).sum(axis=1))
    # Values that differ by next to nothing may leave no length to divide by.
    lengths = np.where(lengths > 0, lengths, np.nan)
    return np.clip((shares * left * right).sum(axis=1) / lengths, -1.0, 1.0)
