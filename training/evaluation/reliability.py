"""How often answers of each probability are right, as numbers and as a picture."""

import dataclasses

import numpy as np

from training.metrics.classification import CALIBRATION_BINS, calibration_bins


@dataclasses.dataclass(frozen=True)
class ReliabilityBins:
    """What rows say of probabilities in bins of equal width.

    Attributes:
        title: Of the model that gave them.
        error: The expected calibration error; None without rows.
        rows: How many probabilities are in each bin, int64 [15].
        confidence: Their mean, NaN where there are none, float64 [15].
        accuracy: The share of right ones, NaN where there are none, float64 [15].
    """

    title: str
    error: float | None
    rows: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray


def reliability_bins(title: str, sure: np.ndarray, right: np.ndarray, error: float | None) -> ReliabilityBins:
    """The bins of probabilities, those of `training.metrics.classification.calibration_error`.

    Args:
        title: Of the model that gave them.
        sure: float [N], in [0, 1].
        right: bool [N].
        error: Their calibration error.
    """
    bins = calibration_bins(np.asarray(sure, np.float64))
    rows = np.bincount(bins, minlength=CALIBRATION_BINS)
    with np.errstate(invalid="ignore"):
        means = (np.bincount(bins, weights, CALIBRATION_BINS) / rows for weights in (sure, right))
        return ReliabilityBins(title, error, rows, *means)
