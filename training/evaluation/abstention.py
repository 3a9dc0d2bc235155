"""Abstention: the probability below which a prediction is not used, chosen for a target precision."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import beta

from training.io.examples import Subset, label_ids

# Confidence that other rows of the same kind reach the precision.
CONFIDENCE = 0.9


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


def top_predictions(
    task: Any,
    part: Subset,
    labels: Sequence[str],
    probabilities: np.ndarray,
    thresholds: Sequence[float] | None,
) -> tuple[np.ndarray, np.ndarray]:
    """The probability of the single prediction for each row, float32 [R], and whether it is correct, bool [R].

    It is the label of the highest probability, float32 [R, C], or with thresholds whether a pair matches, [R, 1].
    """
    if thresholds is None:
        ids, _ = label_ids(part.examples, part.rows, labels)
        return probabilities.max(axis=1), probabilities.argmax(axis=1) == ids
    score = np.asarray(probabilities, np.float32)[:, 0]
    is_match = score >= np.float32(thresholds[0])
    correct = is_match == (task.targets(part, labels)[:, 0] > 0)
    return np.where(is_match, score, np.float32(1) - score), correct


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
    found = beta.ppf(1 - CONFIDENCE, np.maximum(hits, 1), rows - hits + 1)
    return np.where(hits > 0, found, 0.0)
