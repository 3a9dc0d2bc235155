"""What probabilities amount to, as JSON values."""

from collections.abc import Sequence
from typing import Any

import numpy as np


def one_label(
    probabilities: np.ndarray, labels: Sequence[str], abstain_below: float | None = None
) -> dict[str, Any]:
    """{"label": the best, "probability": of that label, "probabilities": {label: p}} of probabilities [C].

    Where there is a probability to abstain below, also {"abstained": whether that of the label is lower}.
    """
    best = int(probabilities.argmax())
    return {
        "label": labels[best],
        "probability": float(probabilities[best]),
        **_abstained(probabilities[best], abstain_below),
        "probabilities": _named(probabilities, labels),
    }


def several_labels(
    probabilities: np.ndarray, labels: Sequence[str], thresholds: Sequence[float]
) -> dict[str, Any]:
    """{"labels": those given, best first, "probabilities": {label: p}} of probabilities [C]."""
    given = probabilities >= np.asarray(thresholds, np.float32)
    order = np.argsort(-probabilities, kind="stable")
    return {
        "labels": [labels[i] for i in order if given[i]],
        "probabilities": _named(probabilities, labels),
    }


def pair(score: float, threshold: float | None, abstain_below: float | None = None) -> dict[str, Any]:
    """{"score": …} of a pair, and where there is a threshold {"match": whether the score reaches it}.

    Where there is a probability to abstain below, also {"abstained": whether that of the answer is lower}; of no match
    it is 1 - score.
    """
    answer: dict[str, Any] = {"score": float(score)}
    if threshold is not None:
        answer["match"] = bool(np.float32(score) >= np.float32(threshold))
        sure = np.float32(score) if answer["match"] else np.float32(1) - np.float32(score)
        answer |= _abstained(sure, abstain_below)
    return answer


def _abstained(probability: float | np.floating, abstain_below: float | None) -> dict[str, bool]:
    if abstain_below is None:
        return {}
    return {"abstained": bool(np.float32(probability) < np.float32(abstain_below))}


def _named(probabilities: np.ndarray, labels: Sequence[str]) -> dict[str, float]:
    return {label: float(p) for label, p in zip(labels, probabilities, strict=True)}
