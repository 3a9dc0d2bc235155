"""Bootstrap confidence intervals of classification scores.

Rows are resampled with replacement. Accuracy and F1 depend on counts only, so equal rows are grouped and the group
sizes are drawn from a multinomial distribution. This gives the distribution of drawn rows at a fraction of the cost of
`scipy.stats.bootstrap`.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from training.metrics.confusion import f1, indicator_counts, mean_over, micro_f1, occurring

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


def single_label_intervals(
    true_ids: np.ndarray, predicted_ids: np.ndarray, resampling: Resampling = DEFAULT
) -> Intervals:
    """Intervals of `accuracy` and `macro_f1`, each [lower, upper], for label ids int [R]; empty without rows.

    The macro average of a resample runs over the labels that are true or predicted in it.
    """
    pairs = np.stack([np.asarray(true_ids, np.int64), np.asarray(predicted_ids, np.int64)], axis=1)
    if not len(pairs):
        return {}
    pairs, sizes = np.unique(pairs, axis=0, return_counts=True)
    columns = np.unique(pairs)
    true, predicted = (pairs[:, side, None] == columns for side in (0, 1))  # [U, C]
    right = pairs[:, 0] == pairs[:, 1]
    accuracies, macros = [], []
    for weights in resample_weights(sizes, resampling):
        counts = indicator_counts(true, predicted, weights)
        accuracies.append(weights @ right / sizes.sum())
        macros.append(mean_over(f1(counts), occurring(counts)))
    return named_intervals(resampling.level, accuracy=accuracies, macro_f1=macros)


def multi_label_intervals(
    true: np.ndarray, predicted: np.ndarray, resampling: Resampling = DEFAULT
) -> Intervals:
    """Intervals for several labels per row, 0 or 1, [R, C]; empty without rows.

    They are `accuracy` (all labels of a row right), `micro_f1` and `macro_f1` (over all C labels), each [lower, upper].
    """
    both = np.concatenate([np.asarray(true), np.asarray(predicted)], axis=1).astype(np.int8)
    if not len(both):
        return {}
    both, sizes = np.unique(both, axis=0, return_counts=True)
    true, predicted = np.split(both, 2, axis=1)  # [U, C]
    right = (true == predicted).all(axis=1)
    accuracies, micros, macros = [], [], []
    for weights in resample_weights(sizes, resampling):
        counts = indicator_counts(true, predicted, weights)
        accuracies.append(weights @ right / sizes.sum())
        micros.append(micro_f1(counts))
        macros.append(f1(counts).mean(axis=-1))
    return named_intervals(resampling.level, accuracy=accuracies, micro_f1=micros, macro_f1=macros)


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


def named_intervals(level: float, **chunks: list[np.ndarray]) -> Intervals:
    """`percentile_interval` of each statistic, whose values are in chunks."""
    return {name: list(percentile_interval(np.concatenate(parts), level)) for name, parts in chunks.items()}
