"""Reliability: confidence and accuracy of predictions in bins of their probability."""

import dataclasses

import numpy as np

from training.metrics.classification import CALIBRATION_BINS, calibration_bins


@dataclasses.dataclass(frozen=True)
class ReliabilityBins:
    """Confidence and accuracy in bins of equal width.

    Attributes:
        title: Name of the model.
        error: The expected calibration error; None without rows.
        rows: Number of predictions in each bin, int64 [15].
        confidence: Their mean probability, NaN for empty bins, float64 [15].
        accuracy: The share of correct ones, NaN for empty bins, float64 [15].
    """

    title: str
    error: float | None
    rows: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray


def reliability_bins(
    title: str, confidence: np.ndarray, correct: np.ndarray, error: float | None
) -> ReliabilityBins:
    """The bins of `training.metrics.classification.calibration_error`.

    Args:
        title: Name of the model.
        confidence: Probabilities, float [N].
        correct: Whether each prediction is correct, bool [N].
        error: Their calibration error.
    """
    bins = calibration_bins(np.asarray(confidence, np.float64))
    rows = np.bincount(bins, minlength=CALIBRATION_BINS)
    with np.errstate(invalid="ignore"):
        means = (np.bincount(bins, weights, CALIBRATION_BINS) / rows for weights in (confidence, correct))
        return ReliabilityBins(title, error, rows, *means)
