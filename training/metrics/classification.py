"""Scores of classification as JSON values; undefined scores are None, never NaN.

As in scikit-learn with `zero_division=0`, a precision, recall or F1 without a denominator is 0. With one label per row,
macro averages run over the labels that are true or predicted at least once; with several labels over all labels.

`labels` may be longer than the model's C columns: the labels from C on are only in the test rows. They lower the
accuracy and have F1 0, but have no probabilities, so roc_auc, average_precision and loss leave them out.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from kmha.errors import InputError, format_names
from training.metrics.confusion import (
    LabelCounts,
    confusion_matrix,
    id_counts,
    indicator_counts,
    mean_over,
    micro_f1,
    occurring,
    scores_by_label,
    scores_by_name,
)

CALIBRATION_BINS = 15
# Of a confusion matrix, which grows with the square of their number.
MOST_MATRIX_LABELS = 1_000
_SMALLEST_PROBABILITY = 1e-7  # keeps the loss finite if a probability underflows to 0


def single_label_scores(
    true_ids: np.ndarray, probabilities: np.ndarray, labels: Sequence[str], positive: str | None = None
) -> dict[str, Any]:
    """Scores probabilities of one label per row; the most probable label is predicted.

    Args:
        true_ids: int [R], positions in `labels`.
        probabilities: float [R, C]; rows sum to 1.
        labels: At least C names; from C on, labels that are only in the test rows.
        positive: The label whose f1, precision, recall, roc_auc and average_precision replace the macro averages.
            None: with C = 2 the last label in sorted order ("1" of "0" and "1"), otherwise no label.

    Returns:
        The keys of `single_label_prediction_scores`, and roc_auc and average_precision (of `positive`, else macro
        one-vs-rest over the labels with positive and negative rows), ece (top label, 15 equal-width bins) and loss
        (mean cross-entropy).

    Raises:
        InputError: `positive` is not a label.
        ValueError: Shapes do not fit, an id is outside `labels`, or a probability is not finite.
    """
    true_ids = np.asarray(true_ids, np.int64)
    probabilities = _checked(probabilities, len(true_ids), len(labels))
    num_classes = probabilities.shape[1]
    predicted = probabilities.argmax(axis=1)
    scores = single_label_prediction_scores(true_ids, predicted, labels, positive, num_classes=num_classes)
    known = true_ids < num_classes
    chosen = range(num_classes)
    if "positive" in scores:
        chosen = [column for column in chosen if labels[column] == scores["positive"]]
    picked = probabilities[known, true_ids[known]]
    return scores | {
        **_ranking_scores(true_ids[:, None] == np.arange(num_classes), probabilities, chosen),
        "ece": calibration_error(probabilities.max(axis=1), predicted == true_ids),
        "loss": log_loss(picked),
    }


def single_label_prediction_scores(
    true_ids: np.ndarray,
    predicted_ids: np.ndarray,
    labels: Sequence[str],
    positive: str | None = None,
    *,
    num_classes: int | None = None,
) -> dict[str, Any]:
    """Scores predictions without probabilities, such as those of the baseline.

    The ids int [R] are positions in `labels`; `num_classes` is C, or None for all labels. For `positive` see
    `single_label_scores`.

    Returns:
        rows, accuracy, macro_f1, micro_f1, weighted_f1; precision and recall (macro), or precision, recall and f1 of
        the positive label with its name as `positive`; per_class {label: precision, recall, f1, support};
        confusion_matrix (rows are true labels, in the order of `labels`; absent with more than 1,000 labels).

    Raises:
        InputError: `positive` is not a label.
        ValueError: The lengths differ or an id is outside `labels`.
    """
    true_ids, predicted_ids = np.asarray(true_ids, np.int64), np.asarray(predicted_ids, np.int64)
    if true_ids.ndim != 1 or true_ids.shape != predicted_ids.shape:
        raise ValueError(f"expected ids of one shape [R], got {true_ids.shape} and {predicted_ids.shape}")
    for ids in (true_ids, predicted_ids):
        if ids.size and not 0 <= ids.min() <= ids.max() < len(labels):
            raise ValueError(f"expected ids in [0, {len(labels)}), got {ids.min()} to {ids.max()}")
    known = list(labels[: len(labels) if num_classes is None else num_classes])
    if positive is None and len(known) == 2:
        positive = max(known)
    counts = id_counts(true_ids, predicted_ids, len(labels))
    scores = _count_scores(counts, labels, occurring(counts), len(true_ids))
    scores["accuracy"] = _mean(true_ids == predicted_ids)
    if positive is not None:
        if positive not in labels:
            raise InputError(f"positive label: expected one of {format_names(labels)}; got {positive!r}")
        scores["positive"] = positive
        for name in ("f1", "precision", "recall"):
            scores[name] = scores["per_class"][positive][name] if len(true_ids) else None
    if len(labels) <= MOST_MATRIX_LABELS:
        scores["confusion_matrix"] = confusion_matrix(true_ids, predicted_ids, len(labels)).tolist()
    return scores


def multi_label_scores(
    true: np.ndarray, probabilities: np.ndarray, labels: Sequence[str], thresholds: np.ndarray
) -> dict[str, Any]:
    """Scores probabilities of several labels per row; labels that reach their threshold are predicted.

    Args:
        true: int8 [R, L], 0 or 1, one column for each of `labels`.
        probabilities: float [R, C], C at most L.
        labels: L names; from C on, labels that are only in the test rows.
        thresholds: float [C]; compared in float32, as the model does.

    Returns:
        The keys of `multi_label_prediction_scores`, and roc_auc and average_precision (macro over the labels with
        positive and negative rows), ece (of all probabilities pooled, 15 equal-width bins) and loss (mean binary
        cross-entropy).

    Raises:
        ValueError: Shapes do not fit or a probability is not finite.
    """
    true = np.asarray(true)
    probabilities = _checked(probabilities, len(true), len(labels))
    num_classes = probabilities.shape[1]
    predicted = np.zeros((len(true), len(labels)), np.int8)
    predicted[:, :num_classes] = probabilities.astype(np.float32) >= np.asarray(thresholds, np.float32)
    scores = multi_label_prediction_scores(true, predicted, labels)
    known = true[:, :num_classes] != 0
    picked = np.where(known, probabilities, 1.0 - probabilities)
    return scores | {
        **_ranking_scores(known, probabilities, range(num_classes)),
        "ece": calibration_error(probabilities.ravel(), known.ravel()),
        "loss": log_loss(picked),
    }


def multi_label_prediction_scores(
    true: np.ndarray, predicted: np.ndarray, labels: Sequence[str]
) -> dict[str, Any]:
    """Scores predictions of several labels per row, 0 or 1, [R, L], without probabilities.

    Returns:
        rows, accuracy (all labels of a row right), macro_f1, micro_f1, weighted_f1, precision and recall
        (macro), per_class {label: precision, recall, f1, support}.

    Raises:
        ValueError: Shapes do not fit.
    """
    true, predicted = np.asarray(true) != 0, np.asarray(predicted) != 0
    if true.shape != predicted.shape or true.shape[1:] != (len(labels),):
        raise ValueError(f"expected [R, {len(labels)}] twice, got {true.shape} and {predicted.shape}")
    counts = indicator_counts(true, predicted)
    scores = _count_scores(counts, labels, np.ones(len(labels)), len(true))
    return scores | {"accuracy": _mean((true == predicted).all(axis=1))}


def log_loss(of_targets: np.ndarray) -> float | None:
    """The mean of −log of the probabilities of the targets, float of any shape; None without any."""
    return _mean(-np.log(np.clip(of_targets, _SMALLEST_PROBABILITY, None)))


def calibration_error(confidences: np.ndarray, right: np.ndarray) -> float | None:
    """Expected calibration error from confidences float [N] in [0, 1], of which bool [N] are right; None without rows.

    It is the mean difference between confidence and accuracy in `calibration_bins`, weighted by the rows of the bin.
    """
    if not len(confidences):
        return None
    bins = calibration_bins(confidences)
    gaps = np.bincount(bins, weights=confidences - right, minlength=CALIBRATION_BINS)
    return float(np.abs(gaps).sum() / len(confidences))


def calibration_bins(confidences: np.ndarray) -> np.ndarray:
    """The bin of each confidence in [0, 1], int64 [N]: 15 bins of equal width, closed above."""
    return np.clip(np.ceil(confidences * CALIBRATION_BINS).astype(np.int64) - 1, 0, CALIBRATION_BINS - 1)


def _checked(probabilities: np.ndarray, num_rows: int, num_labels: int) -> np.ndarray:
    probabilities = np.asarray(probabilities, np.float64)
    shape = probabilities.shape
    if len(shape) != 2 or shape[0] != num_rows or not 0 < shape[1] <= num_labels:
        expected = f"[{num_rows}, C] with C from 1 to {num_labels}"
        raise ValueError(f"expected probabilities {expected}, got {shape}")
    if not np.isfinite(probabilities).all():
        row = int(np.argwhere(~np.isfinite(probabilities))[0, 0])
        raise ValueError(f"probabilities of row {row} are not finite")
    return probabilities


def _count_scores(
    counts: LabelCounts, labels: Sequence[str], averaged: np.ndarray, num_rows: int
) -> dict[str, Any]:
    columns = scores_by_name(counts)
    averages = {
        "macro_f1": mean_over(columns["f1"], averaged),
        "micro_f1": micro_f1(counts),
        "weighted_f1": mean_over(columns["f1"], counts.actual),
        "precision": mean_over(columns["precision"], averaged),
        "recall": mean_over(columns["recall"], averaged),
    }
    named = {name: float(value) if num_rows else None for name, value in averages.items()}
    return {"rows": num_rows, "accuracy": None, **named, "per_class": scores_by_label(counts, labels)}


def _ranking_scores(true: np.ndarray, scores: np.ndarray, columns: Sequence[int]) -> dict[str, float | None]:
    """Mean ROC-AUC and average precision over the columns with positive and negative rows."""
    usable = [column for column in columns if true[:, column].any() and not true[:, column].all()]
    found = [_column_ranking(true[:, column], scores[:, column]) for column in usable]
    return {
        "roc_auc": _mean([area for area, _ in found]),
        "average_precision": _mean([precision for _, precision in found]),
    }


def _column_ranking(true: np.ndarray, scores: np.ndarray) -> tuple[float, float]:
    """ROC-AUC and average precision of scores float [R], of which bool [R] are positive.

    The numbers of scikit-learn, whose functions take 40 times as long where a label has few of 10,000 rows.
    """
    ranked, positives = np.sort(scores), np.sort(scores[true])
    below, up_to = (np.searchsorted(ranked, positives, side) for side in ("left", "right"))
    own_below, own_up_to = (np.searchsorted(positives, positives, side) for side in ("left", "right"))
    # Of equal scores half of the negative rows are below a positive one.
    negatives_below = (below - own_below + up_to - own_up_to) / 2
    area = np.mean(negatives_below) / (len(ranked) - len(positives))
    return float(area), float(np.mean((len(positives) - own_below) / (len(ranked) - below)))


def _mean(values: np.ndarray | list[float]) -> float | None:
    return float(np.mean(values)) if np.size(values) else None


@dataclasses.dataclass(frozen=True)
class ReliabilityBins:
    """Confidence and accuracy of a model in `calibration_bins`."""

    title: str  # the model
    error: float | None  # the expected calibration error; None without rows
    rows: np.ndarray  # predictions in each bin, int64 [15]
    confidence: np.ndarray  # their mean probability, NaN for empty bins, float64 [15]
    accuracy: np.ndarray  # the share of correct ones, NaN for empty bins, float64 [15]


def reliability_bins(
    title: str, confidence: np.ndarray, correct: np.ndarray, error: float | None
) -> ReliabilityBins:
    """The bins of probabilities float [N], of which bool [N] are correct, with their calibration error."""
    bins = calibration_bins(np.asarray(confidence, np.float64))
    rows = np.bincount(bins, minlength=CALIBRATION_BINS)
    with np.errstate(invalid="ignore"):
        means = (np.bincount(bins, weights, CALIBRATION_BINS) / rows for weights in (confidence, correct))
        return ReliabilityBins(title, error, rows, *means)
