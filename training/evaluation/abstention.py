"""From which probability on answers are relied on: those above are right as often as was wanted, the rest abstain."""

import dataclasses
from typing import Any

import numpy as np
from scipy.stats import beta

# How sure it is to be that the precision is reached on other rows like these.
CONFIDENCE = 0.9


@dataclasses.dataclass(frozen=True)
class Abstention:
    """A threshold and what it does on some rows.

    Attributes:
        abstain_below: The probability of an answer below which it is not relied on, in float32.
        rows: How many are answered.
        coverage: Their share of all; None without any row.
        precision: The share of right ones among them; None where none is answered.
        precision_at_least: What it is on other rows like these in 9 cases of 10; None where none is answered.
    """

    abstain_below: float
    rows: int
    coverage: float | None
    precision: float | None
    precision_at_least: float | None

    def values(self) -> dict[str, Any]:
        """As JSON values."""
        return dataclasses.asdict(self)


def evaluate_threshold(abstain_below: float, sure: np.ndarray, right: np.ndarray) -> Abstention:
    """What a threshold does on rows.

    Args:
        abstain_below: Compared in float32.
        sure: The probability of each row's answer, float [R].
        right: Whether it is right, bool [R].
    """
    answered = np.asarray(sure, np.float32) >= np.float32(abstain_below)
    rows, hits = int(answered.sum()), int(np.asarray(right)[answered].sum())
    return Abstention(
        float(np.float32(abstain_below)),
        rows,
        rows / len(answered) if len(answered) else None,
        hits / rows if rows else None,
        float(_at_least(np.array([hits]), np.array([rows]))[0]) if rows else None,
    )


def choose_threshold(sure: np.ndarray, right: np.ndarray, precision: float) -> Abstention | None:
    """The threshold that leaves the most answers, of which a wanted share is right.

    The share that is right on these rows is not enough: among many thresholds there is always one that these rows
    happen to flatter. What counts is the share that other rows like these have in 9 cases of 10.

    Args:
        sure: The probability of each row's answer, float [R].
        right: Whether it is right, bool [R].
        precision: The wanted share, in (0, 1).

    Returns:
        None where no threshold is enough.
    Source: the bound of Clopper and Pearson 1934; selecting by one: Geifman and El-Yaniv 2017, arXiv:1705.08500.
    """
    order = np.argsort(-np.asarray(sure, np.float32), kind="stable")
    ranked = np.asarray(sure, np.float32)[order]
    hits = np.cumsum(np.asarray(right, bool)[order])
    rows = np.arange(1, len(ranked) + 1)
    # Between rows that tie there is no threshold.
    ends = np.append(ranked[1:] < ranked[:-1], True) if len(ranked) else np.zeros(0, bool)
    good = np.flatnonzero(ends & (_at_least(hits, rows) >= precision))
    if not len(good):
        return None
    last = good[-1]
    if last == len(ranked) - 1:
        return evaluate_threshold(0.0, sure, right)
    # Midway between the last answer and the next row: what another copy rounds otherwise stays on its side.
    cut = np.float32((float(ranked[last]) + float(ranked[last + 1])) / 2)
    return evaluate_threshold(float(cut if cut > ranked[last + 1] else ranked[last]), sure, right)


def _at_least(hits: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The lowest share that would give so many hits, or more, in 1 case of 10."""
    found = beta.ppf(1 - CONFIDENCE, np.maximum(hits, 1), rows - hits + 1)
    return np.where(hits > 0, found, 0.0)
