"""Decision thresholds chosen on validation rows: for the best scores, or to abstain for a target precision."""

import dataclasses
from typing import Any

import numpy as np
from scipy.stats import beta

# The weight of the shared threshold, in positives.
SHARED_POSITIVES = 20
# Random samples of the rows whose best thresholds are averaged, and the values of all samples together.
SAMPLES, SAMPLED_VALUES = 10, 20_000_000
# Candidates for the shared threshold: those that predict so many of all values.
_SHARED_CANDIDATES = np.geomspace(1e-4, 1.0, 120)

# Confidence that other rows of the same kind reach the precision.
_CONFIDENCE = 0.9


def best_thresholds(true: np.ndarray, probabilities: np.ndarray, *, default: float = 0.5) -> np.ndarray:
    """Finds a threshold for each label for a high F1 on other rows.

    A label is predicted if its probability, in float32, reaches the threshold. The threshold with the highest F1 on
    some rows depends on few of them. So it is the mean over ten bootstrap samples of the rows, and a label with n
    positives gets (n * mean + 20 * shared) / (n + 20), where `shared` is the one threshold with the highest macro-F1
    over all labels with a positive. With very many values there are fewer samples. Measured with linear models (test
    macro-F1 | micro-F1, thresholds from samples of validation rows; before: the best threshold, and for labels with
    fewer than 10 positives partly the shared one with the highest micro-F1):

        data set (labels), validation rows    before          this rule
        GoEmotions (28), 200                  .439 | .554     .482 | .564
        GoEmotions (28), 5,426                .484 | .555     .486 | .563
        Reuters-21578 (90), 200               .493 | .873     .557 | .869
        Reuters-21578 (90), 777               .481 | .871     .535 | .878

    The labels are 0 or 1, [R, C], the probabilities float [R, C] or other finite scores that grow with confidence, the
    result float32 [C]. `default` is the threshold of all labels if no row has a label. Raises ValueError if the shapes
    differ or are not [R, C], or a probability is not finite.
    """
    true, scores = _checked(true, probabilities, "[R, C]")
    positives = true.sum(axis=0)
    if not positives.sum():
        return np.full(true.shape[1], default, np.float32)
    own = _mean_best_thresholds(true, scores)
    shared = _shared_threshold(true, scores)
    own = np.where(np.isnan(own), shared, own)
    return ((positives * own + SHARED_POSITIVES * shared) / (positives + SHARED_POSITIVES)).astype(np.float32)


def _mean_best_thresholds(true: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """The best threshold of each label, the mean over samples of the rows, float64 [C]; NaN without a positive."""
    samples = min(SAMPLES, SAMPLED_VALUES // scores.size)
    total, count = np.zeros((2, true.shape[1]))
    rng = np.random.default_rng(0)
    for _ in range(max(1, samples)):
        rows = rng.integers(0, len(true), len(true)) if samples > 1 else np.arange(len(true))
        has_positives = true[rows].any(axis=0)
        total += np.where(has_positives, _best_f1_thresholds(true[rows], scores[rows]), 0.0)
        count += has_positives
    return np.divide(total, count, out=np.full(len(total), np.nan), where=count > 0)


def _shared_threshold(true: np.ndarray, scores: np.ndarray) -> float:
    """The threshold for all labels with the highest macro-F1; of equally good ones the highest."""
    candidates = np.unique(np.quantile(scores, 1.0 - _SHARED_CANDIDATES, method="higher"))
    f1, labels = np.zeros(len(candidates)), np.flatnonzero(true.any(axis=0))
    for label in labels:
        every = np.sort(scores[:, label])
        positive = np.sort(scores[true[:, label], label])
        predicted = len(every) - np.searchsorted(every, candidates)
        hits = len(positive) - np.searchsorted(positive, candidates)
        f1 += 2.0 * hits / (predicted + len(positive))
    best = candidates[len(candidates) - 1 - f1[::-1].argmax()]
    others = scores[scores < best]
    return float(_midway(others.max().astype(np.float64) if len(others) else _below_all(best), best))


def best_threshold(true: np.ndarray, probabilities: np.ndarray, *, default: float = 0.5) -> float:
    """Finds the threshold of a binary label, [R], with the highest accuracy on the given rows; `default` without rows.

    A row is positive if its probability, in float32, reaches the threshold. The search is exact: a threshold is midway
    between two neighboring distinct values, or below or above all of them. Among equally accurate thresholds, the
    lowest is chosen: it has the best F1. It is a float32 number, above 1 only if no positive prediction is best
    although some probability is 1. Raises ValueError if the shapes differ or are not [R], or a probability is not
    finite.
    """
    right, edges = _accuracies(true, probabilities)
    if len(right) == 1:
        return default
    best = len(right) - 1 - right[::-1].argmax()
    return float(_midway(edges[best + 1], edges[best]))


def steady_threshold(true: np.ndarray, probabilities: np.ndarray, *, middle: float = 0.5) -> float:
    """Finds the threshold of a binary label nearest to the middle whose accuracy is near the best.

    Near means within one standard error, of a share with two more right and two more wrong rows: a few dozen rows that
    are all right would otherwise have an error of 0, and one row would move the threshold far. It generalizes better
    than the best threshold. With out-of-fold probabilities of MRPC, thresholds from 408 random rows gave the other
    rows accuracy .7540 and F1 .8275, the best thresholds .7492 and .8225 (300 samples); of sts_zh accuracies of .9907
    and .9908 (the error without added rows).

    The result is a float32 number, or `middle` itself, the threshold of a calibrated probability, if it is good enough
    or there are no rows. Arguments and errors are those of `best_threshold`.

    Source: the one-standard-error rule, Breiman et al. 1984, Classification and Regression Trees, section 3.4.3; the
    share, Agresti and Coull 1998, "Approximate Is Better than 'Exact'".
    """
    right, edges = _accuracies(true, probabilities)
    rows = len(right) - 1
    if not rows:
        return middle
    accuracies = right / rows
    best = accuracies.max()
    smoothed = (best * rows + 2) / (rows + 4)
    good = np.flatnonzero(accuracies >= best - np.sqrt(smoothed * (1 - smoothed) / rows))
    lower, upper = edges[good + 1], edges[good]
    # All thresholds above the lower edge, up to the upper edge, give the same predictions.
    away = np.maximum(0.0, np.maximum(lower - middle, middle - upper))
    nearest = away.argmin()
    if lower[nearest] < middle <= upper[nearest]:
        return middle
    return float(_midway(lower[nearest], upper[nearest]))


def _accuracies(true: np.ndarray, probabilities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Number of right predictions of every threshold, highest first, int64 [R + 1], and the edges, float64 [R + 2].

    It is -1 between rows with equal probability, which no threshold separates.
    """
    true, scores = _checked(true, probabilities, "[R]")
    if not len(true):
        return np.zeros(1, np.int64), np.zeros(2)
    ordered, hits = _hits(true[:, None], scores[:, None])
    ordered, hits = ordered[:, 0], np.concatenate([[0], hits[:, 0]])
    predicted = np.arange(len(hits))
    right = hits + (len(true) - hits[-1]) - (predicted - hits)
    right[1:-1][ordered[:-1] == ordered[1:]] = -1
    return right, np.concatenate([[_above_all(ordered[0])], ordered, [_below_all(ordered[-1])]])


def _checked(true: np.ndarray, probabilities: np.ndarray, shape: str) -> tuple[np.ndarray, np.ndarray]:
    """The labels as bool and the probabilities as float32."""
    true, scores = np.asarray(true) != 0, np.asarray(probabilities, np.float32)
    if true.ndim != len(shape.split(",")) or true.shape != scores.shape:
        shapes = f"{true.shape} and {scores.shape}"
        raise ValueError(f"true and probabilities must share one shape {shape}, got {shapes}")
    if not np.isfinite(scores).all():
        raise ValueError("probabilities must be finite")
    return true, scores


def _best_f1_thresholds(true: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """The threshold of each column with the highest F1, float32 [C], from bool [R, C] and float32 [R, C], R > 0."""
    scores, hits = _hits(true, scores)
    predicted = np.arange(1, len(scores) + 1)[:, None]
    f1 = 2.0 * hits / (predicted + hits[-1])
    # No threshold separates equal scores: only the last of them counts.
    f1[:-1][scores[:-1] == scores[1:]] = -1.0
    best = f1.argmax(axis=0)
    padded = np.concatenate([scores.astype(np.float64), _below_all(scores[-1])[None]])
    columns = np.arange(scores.shape[1])
    return _midway(padded[best + 1, columns], padded[best, columns])


def _hits(true: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each column sorted from the highest score, [R, C], and the number of positives up to each row, int64 [R, C]."""
    order = np.argsort(-scores, axis=0, kind="stable")
    hits = np.cumsum(np.take_along_axis(true, order, axis=0), axis=0, dtype=np.int64)
    return np.take_along_axis(scores, order, axis=0), hits


def _below_all(lowest: np.ndarray) -> np.ndarray:
    lowest = lowest.astype(np.float64)
    return np.where(lowest >= 0.0, 0.0, lowest - 1.0)


def _above_all(highest: np.ndarray) -> np.ndarray:
    return np.where(highest < 1.0, np.float32(1.0), np.nextafter(highest, np.float32(np.inf)))


def _midway(lower: np.ndarray, upper: np.ndarray) -> np.ndarray:
    """The float32 middle of two float32 numbers in float64."""
    middle = ((upper + lower) / 2.0).astype(np.float32)
    # Adjacent float32 numbers have no middle; the lower one would include its row.
    return np.where(middle <= lower, upper, middle).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Abstention:
    """A threshold and its effect on some rows."""

    abstain_below: float  # predictions with a lower probability are not used, in float32
    rows: int  # used predictions
    coverage: float | None  # their share of all predictions; None without any row
    precision: float | None  # the share of correct ones among them; None if there are none
    precision_at_least: float | None  # lower confidence bound of the precision on other rows

    def values(self) -> dict[str, Any]:
        """As JSON values."""
        return dataclasses.asdict(self)


def evaluate_threshold(abstain_below: float, confidence: np.ndarray, correct: np.ndarray) -> Abstention:
    """The effect of a threshold on rows whose predictions have probabilities float [R] and are correct, bool [R]."""
    used = np.asarray(confidence, np.float32) >= np.float32(abstain_below)
    rows, hits = int(used.sum()), int(np.asarray(correct)[used].sum())
    return Abstention(
        float(np.float32(abstain_below)),
        rows,
        rows / len(used) if len(used) else None,
        hits / rows if rows else None,
        float(_lower_bound(np.array([hits]), np.array([rows]))[0]) if rows else None,
    )


def choose_threshold(confidence: np.ndarray, correct: np.ndarray, precision: float) -> Abstention | None:
    """The threshold with the largest coverage whose precision is at least the target with 90 % confidence.

    The precision on these rows alone is not enough: among many thresholds some reach it by chance. The result is None
    if no threshold reaches the target, in (0, 1). For the other arguments see `evaluate_threshold`.

    Source: the bound of Clopper and Pearson 1934; selecting by one: Geifman and El-Yaniv 2017, arXiv:1705.08500.
    """
    order = np.argsort(-np.asarray(confidence, np.float32), kind="stable")
    ranked = np.asarray(confidence, np.float32)[order]
    hits = np.cumsum(np.asarray(correct, bool)[order])
    rows = np.arange(1, len(ranked) + 1)
    # A threshold cannot separate rows of equal probability.
    ends = np.append(ranked[1:] < ranked[:-1], True) if len(ranked) else np.zeros(0, bool)
    good = np.flatnonzero(ends & (_lower_bound(hits, rows) >= precision))
    if not len(good):
        return None
    last = good[-1]
    if last == len(ranked) - 1:
        return evaluate_threshold(0.0, confidence, correct)
    # Between two rows, so that the rounding differences of exported models do not change the decision.
    middle = np.float32((float(ranked[last]) + float(ranked[last + 1])) / 2)
    found = middle if middle > ranked[last + 1] else ranked[last]
    return evaluate_threshold(float(found), confidence, correct)


def _lower_bound(hits: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Clopper-Pearson lower bound of the share of hits."""
    found = beta.ppf(1 - _CONFIDENCE, np.maximum(hits, 1), rows - hits + 1)
    return np.where(hits > 0, found, 0.0)
