"""Bootstrap intervals: how far a score would move had other test rows been drawn.

Rows are resampled with replacement. For accuracy and F1 only the counts of a resample matter, so rows with
the same truth and the same answer are grouped and the group sizes are drawn from the multinomial
distribution: the same distribution as drawing rows, at a fraction of the cost.
"""

from collections.abc import Callable, Iterator

import numpy as np

from training.metrics.confusion import f1, indicator_counts, mean_over, micro_f1, occurring

# Bound the memory of the weights at once, to 100 resamples and to 16 MB.
_RESAMPLES_AT_ONCE = 100
_WEIGHTS_AT_ONCE = 2_000_000


def bootstrap_interval(
    statistic: Callable[..., float],
    *arrays: np.ndarray,
    seed: int = 0,
    resamples: int = 1000,
    level: float = 0.95,
) -> tuple[float, float]:
    """Gives the percentile bootstrap interval of any statistic of the rows.

    Args:
        statistic: Called with the resampled arrays in their given order; returns one number.
        *arrays: Arrays with R rows each; the same rows are drawn from all.
        seed: Makes the interval repeatable.
        resamples: Number of resamples; the cost is one call of `statistic` each.
        level: Probability mass inside the interval, in (0, 1).

    Returns:
        Lower and upper end.

    Raises:
        ValueError: No array, no row, or arrays of different length.
    """
    lengths = {len(array) for array in arrays}
    if len(lengths) != 1 or 0 in lengths:
        raise ValueError(
            f"expected arrays of one length above 0, got lengths {[len(array) for array in arrays]}"
        )
    num_rows = lengths.pop()
    arrays = tuple(np.asarray(array) for array in arrays)
    generator = np.random.default_rng(seed)
    values = np.empty(resamples)
    for index in range(resamples):
        rows = generator.integers(num_rows, size=num_rows)
        values[index] = statistic(*(array[rows] for array in arrays))
    return percentile_interval(values, level)


def single_label_intervals(
    true_ids: np.ndarray,
    predicted_ids: np.ndarray,
    *,
    seed: int = 0,
    resamples: int = 1000,
    level: float = 0.95,
) -> dict[str, list[float]]:
    """Gives intervals for answers of one label a row.

    Args:
        true_ids: int [R].
        predicted_ids: int [R].
        seed: Makes the intervals repeatable.
        resamples: Number of resamples.
        level: Probability mass inside each interval, in (0, 1).

    Returns:
        `accuracy` and `macro_f1`, each [lower, upper]; empty without rows. As in `training.metrics.classification`, each
        resample's macro average runs over the labels that are true or answered in it.
    """
    pairs = np.stack([np.asarray(true_ids, np.int64), np.asarray(predicted_ids, np.int64)], axis=1)
    if not len(pairs):
        return {}
    pairs, sizes = np.unique(pairs, axis=0, return_counts=True)
    columns = np.unique(pairs)
    true, predicted = (pairs[:, side, None] == columns for side in (0, 1))  # [U, C]
    right = pairs[:, 0] == pairs[:, 1]
    accuracies, macros = [], []
    for weights in resample_weights(sizes, seed, resamples):
        counts = indicator_counts(true, predicted, weights)
        accuracies.append(weights @ right / sizes.sum())
        macros.append(mean_over(f1(counts), occurring(counts)))
    return _named(level, accuracy=accuracies, macro_f1=macros)


def multi_label_intervals(
    true: np.ndarray,
    predicted: np.ndarray,
    *,
    seed: int = 0,
    resamples: int = 1000,
    level: float = 0.95,
) -> dict[str, list[float]]:
    """Gives intervals for answers of several labels a row.

    Args:
        true: 0 or 1, [R, C].
        predicted: 0 or 1, [R, C].
        seed: Makes the intervals repeatable.
        resamples: Number of resamples.
        level: Probability mass inside each interval, in (0, 1).

    Returns:
        `accuracy` (all labels of a row right), `micro_f1` and `macro_f1` (over all C labels), each
        [lower, upper]; empty without rows.
    """
    both = np.concatenate([np.asarray(true), np.asarray(predicted)], axis=1).astype(np.int8)
    if not len(both):
        return {}
    both, sizes = np.unique(both, axis=0, return_counts=True)
    true, predicted = np.split(both, 2, axis=1)  # [U, C]
    right = (true == predicted).all(axis=1)
    accuracies, micros, macros = [], [], []
    for weights in resample_weights(sizes, seed, resamples):
        counts = indicator_counts(true, predicted, weights)
        accuracies.append(weights @ right / sizes.sum())
        micros.append(micro_f1(counts))
        macros.append(f1(counts).mean(axis=-1))
    return _named(level, accuracy=accuracies, micro_f1=micros, macro_f1=macros)


def resample_weights(sizes: np.ndarray, seed: int, resamples: int) -> Iterator[np.ndarray]:
    """Draws resamples of rows of which some are alike.

    Args:
        sizes: int [U], how often each of the U distinct rows stands in the data; not empty.
        seed: Makes the resamples repeatable.
        resamples: How many are drawn in all.

    Yields:
        float64 [S, U]: how often each distinct row stands in each of the next S resamples.
    """
    generator = np.random.default_rng(seed)
    shares = sizes / sizes.sum()
    at_once = max(1, min(_RESAMPLES_AT_ONCE, _WEIGHTS_AT_ONCE // len(sizes)))
    for start in range(0, resamples, at_once):
        count = min(at_once, resamples - start)
        yield generator.multinomial(sizes.sum(), shares, size=count).astype(np.float64)


def percentile_interval(values: np.ndarray, level: float) -> tuple[float, float]:
    """Gives the ends between which the middle share `level` of a statistic's resampled values lies."""
    tail = (1.0 - level) / 2.0
    lower, upper = np.quantile(values, [tail, 1.0 - tail])
    return float(lower), float(upper)


def _named(level: float, **chunks: list[np.ndarray]) -> dict[str, list[float]]:
    return {name: list(percentile_interval(np.concatenate(parts), level)) for name, parts in chunks.items()}
