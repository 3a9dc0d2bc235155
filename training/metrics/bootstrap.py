"""Bootstrap confidence intervals of scores.

Rows are resampled with replacement. Accuracy and F1 depend on counts only, so equal rows are grouped and the group
sizes are drawn from a multinomial distribution. This gives the distribution of drawn rows at a fraction of the cost of
`scipy.stats.bootstrap`.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from training.metrics.confusion import LabelCounts, f1, indicator_counts, mean_over, micro_f1, occurring

# Limits of the weights in memory: 100 resamples and 16 MB.
_RESAMPLES_AT_ONCE = 100
_WEIGHTS_AT_ONCE = 2_000_000


class Resampling(NamedTuple):
    """Settings of a bootstrap."""

    seed: int = 0
    resamples: int = 1000
    level: float = 0.95  # confidence level in (0, 1)


DEFAULT = Resampling()
Intervals = dict[str, list[float]]  # [lower, upper] by score
Statistics = Callable[
    [np.ndarray], dict[str, np.ndarray]
]  # from weights float64 [S, U] to float64 [S] by score


def bootstrap_interval(
    statistic: Callable[..., float], *arrays: np.ndarray, resampling: Resampling = DEFAULT
) -> tuple[float, float]:
    """Ends of the percentile bootstrap interval of a statistic of arrays with R rows each, drawn together.

    Raises ValueError if there is no row, or the lengths differ.
    """
    from scipy import stats

    lengths = {len(array) for array in arrays}
    if len(lengths) != 1 or 0 in lengths:
        raise ValueError(f"expected arrays of one length above 0, got lengths {sorted(lengths)}")
    if lengths == {1}:  # scipy needs two rows
        return (value := statistic(*arrays)), value
    drawn = stats.bootstrap(
        [np.arange(*lengths)],
        lambda rows: statistic(*(array[rows] for array in arrays)),
        n_resamples=resampling.resamples,
        vectorized=False,
        method="percentile",
        rng=np.random.default_rng(resampling.seed),
    )
    return percentile_interval(drawn.bootstrap_distribution, resampling.level)


@dataclasses.dataclass(frozen=True)
class ResampledScores:
    """What the scores of R rows (of tags R sentences, of rankings R queries) need to be computed for resamples."""

    rows: np.ndarray  # numbers [R, K]; equal rows have the same effect on the scores
    # From U of the rows, [U, K], to a function from their weights, float64 [S, U], to scores float64 [S] by name. A
    # score that is undefined in a resample is NaN.
    statistics: Callable[[np.ndarray], Statistics]
    correct: np.ndarray | None = None  # whether each row counts as a hit in the accuracy, bool [R]

    def intervals(self, resampling: Resampling = DEFAULT) -> Intervals:
        """Percentile intervals [lower, upper] of the scores, empty without rows.

        Undefined resamples are left out. A score without any defined resample has no interval.
        """
        if not len(self.rows):
            return {}
        groups, sizes = np.unique(self.rows, axis=0, return_counts=True)
        return named_intervals(self.statistics(groups), sizes, resampling)


def named_intervals(statistics: Statistics, sizes: np.ndarray, resampling: Resampling) -> Intervals:
    """Percentile intervals of statistics of groups of rows; `sizes` are the rows of each group, int [U], U > 0."""
    chunks = [statistics(weights) for weights in resample_weights(sizes, resampling)]
    intervals = {}
    for name in chunks[0]:
        values = np.concatenate([chunk[name] for chunk in chunks])
        values = values[~np.isnan(values)]
        if len(values):
            intervals[name] = list(percentile_interval(values, resampling.level))
    return intervals


def single_label_resampled(true_ids: np.ndarray, predicted_ids: np.ndarray) -> ResampledScores:
    """`accuracy` and `macro_f1` of label ids int [R].

    The macro average of a resample runs over the labels that are true or predicted in it.
    """
    from scipy.sparse import csr_array

    rows = np.stack([np.asarray(true_ids, np.int64), np.asarray(predicted_ids, np.int64)], axis=1)

    def statistics(pairs: np.ndarray) -> Statistics:
        columns = np.unique(pairs)
        right = pairs[:, 0] == pairs[:, 1]
        # One nonzero number a row, [U, C].
        groups, places = np.arange(len(pairs)), np.searchsorted(columns, pairs)
        shape = len(pairs), len(columns)
        true, predicted, hits = (
            csr_array((values, (groups, places[:, side])), shape)
            for values, side in ((np.ones(len(pairs)), 0), (np.ones(len(pairs)), 1), (right.astype(float), 0))
        )

        def scores(weights: np.ndarray) -> dict[str, np.ndarray]:
            counts = LabelCounts(weights @ hits, weights @ predicted, weights @ true)
            macro_f1 = mean_over(f1(counts), occurring(counts))
            return {"accuracy": weights @ right / weights.sum(axis=1), "macro_f1": macro_f1}

        return scores

    return ResampledScores(rows, statistics, rows[:, 0] == rows[:, 1])


def multi_label_resampled(true: np.ndarray, predicted: np.ndarray) -> ResampledScores:
    """Scores of several labels per row, 0 or 1, [R, C].

    They are `accuracy` (all labels of a row right), `micro_f1` and `macro_f1` (over all C labels).
    """
    rows = np.concatenate([np.asarray(true), np.asarray(predicted)], axis=1).astype(np.int8)

    def statistics(both: np.ndarray) -> Statistics:
        true, predicted = np.split(both, 2, axis=1)  # [U, C]
        right = (true == predicted).all(axis=1)

        def scores(weights: np.ndarray) -> dict[str, np.ndarray]:
            counts = indicator_counts(true, predicted, weights)
            return {
                "accuracy": weights @ right / weights.sum(axis=1),
                "micro_f1": micro_f1(counts),
                "macro_f1": f1(counts).mean(axis=-1),
            }

        return scores

    true, predicted = np.split(rows, 2, axis=1)
    return ResampledScores(rows, statistics, (true == predicted).all(axis=1))


def resample_weights(sizes: np.ndarray, resampling: Resampling) -> Iterator[np.ndarray]:
    """Yields float64 [S, U]: the rows of each group in each of the next S resamples; `sizes` are int [U], U > 0."""
    generator = np.random.default_rng(resampling.seed)
    shares = sizes / sizes.sum()
    at_once = max(1, min(_RESAMPLES_AT_ONCE, _WEIGHTS_AT_ONCE // len(sizes)))
    for start in range(0, resampling.resamples, at_once):
        count = min(at_once, resampling.resamples - start)
        yield generator.multinomial(sizes.sum(), shares, size=count).astype(np.float64)


def percentile_interval(values: np.ndarray, level: float) -> tuple[float, float]:
    """Lower and upper end of the middle fraction `level` of the values."""
    tail = (1.0 - level) / 2.0
    lower, upper = np.quantile(values, [tail, 1.0 - tail])
    return float(lower), float(upper)
