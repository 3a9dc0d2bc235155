"""Predictions from probabilities, as JSON values."""

from collections.abc import Sequence
from typing import Any

import numpy as np


def one_label(
    probabilities: np.ndarray, labels: Sequence[str], abstain_below: float | None = None
) -> dict[str, Any]:
    """{"label": the most probable, "probability": of that label, "probabilities": {label: p}} for probabilities [C].

    With `abstain_below` also {"abstained": whether "probability" is lower than that}.
    """
    best = int(probabilities.argmax())
    return {
        "label": labels[best],
        "probability": float(probabilities[best]),
        **_abstained(probabilities[best], abstain_below),
        "probabilities": _by_label(probabilities, labels),
    }


def several_labels(
    probabilities: np.ndarray, labels: Sequence[str], thresholds: Sequence[float]
) -> dict[str, Any]:
    """{"labels": those that reach their threshold, best first, "probabilities": {label: p}} for probabilities [C]."""
    reached = probabilities >= np.asarray(thresholds, np.float32)
    order = np.argsort(-probabilities, kind="stable")
    return {
        "labels": [labels[i] for i in order if reached[i]],
        "probabilities": _by_label(probabilities, labels),
    }


def pair(score: float, threshold: float | None, abstain_below: float | None = None) -> dict[str, Any]:
    """{"score"} of a pair; with a threshold also {"match": whether the score reaches it}.

    With `abstain_below` also {"abstained": whether the probability of the prediction is lower than that}; the
    probability of no match is 1 - score.
    """
    prediction: dict[str, Any] = {"score": float(score)}
    if threshold is not None:
        prediction["match"] = bool(np.float32(score) >= np.float32(threshold))
        probability = np.float32(score) if prediction["match"] else np.float32(1) - np.float32(score)
        prediction |= _abstained(probability, abstain_below)
    return prediction


def _abstained(probability: float | np.floating, abstain_below: float | None) -> dict[str, bool]:
    if abstain_below is None:
        return {}
    return {"abstained": bool(np.float32(probability) < np.float32(abstain_below))}


def _by_label(probabilities: np.ndarray, labels: Sequence[str]) -> dict[str, float]:
    return {label: float(p) for label, p in zip(labels, probabilities, strict=True)}
