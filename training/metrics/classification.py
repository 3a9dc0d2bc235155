"""Scores of a whole test set, as JSON-able Python values; what is undefined is None, never NaN.

Conventions, those of scikit-learn with `zero_division=0`: a precision, recall or F1 with nothing to divide by
is 0. With one label a row, macro averages run over the labels that are true or answered at least once;
with several labels a row they run over all labels.

`labels` may be longer than the model's C columns: the labels from C on were seen only in the test rows. No
answer can be right for them, so they lower accuracy and count with F1 0. They have no probabilities and are
left out of roc_auc, average_precision and loss.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.metrics import average_precision_score, roc_auc_score

from kmha.errors import InputError
from training.metrics.confusion import (
    LabelCounts,
    confusion_matrix,
    f1,
    indicator_counts,
    matrix_counts,
    mean_over,
    micro_f1,
    occurring,
    precision,
    recall,
)

CALIBRATION_BINS = 15
_SMALLEST_PROBABILITY = 1e-7  # keeps a loss finite where a float32 probability has underflowed to 0


def single_label_scores(
    true_ids: np.ndarray,
    probabilities: np.ndarray,
    labels: Sequence[str],
    positive: str | None = None,
) -> dict[str, Any]:
    """Scores probabilities over labels that exclude each other; the answer is the most probable label.

    Args:
        true_ids: int [R], positions in `labels`.
        probabilities: float [R, C]; rows sum to 1.
        labels: At least C names; from C on, those seen only in the test rows.
        positive: The label whose f1, precision, recall, roc_auc and average_precision are reported instead
            of macro averages. None: with C = 2 the last of the model's labels in sorted order ("1" of "0"
            and "1", "pos" of "neg" and "pos"), otherwise no label.

    Returns:
        The keys of `single_label_answer_scores`, and roc_auc and average_precision (of `positive`, else macro
        one-vs-rest over the labels that have both kinds of rows), ece (top label, 15 equal-width bins) and
        loss (mean negative log-likelihood).

    Raises:
        InputError: `positive` is not a label.
        ValueError: Shapes do not fit, an id is outside `labels`, or a probability is not finite.
    """
    true_ids = np.asarray(true_ids, np.int64)
    probabilities = _checked(probabilities, len(true_ids), len(labels))
    num_classes = probabilities.shape[1]
    answers = probabilities.argmax(axis=1)
    scores = single_label_answer_scores(true_ids, answers, labels, positive, num_classes=num_classes)
    known = true_ids < num_classes
    chosen = range(num_classes)
    if "positive" in scores:
        chosen = [column for column in chosen if labels[column] == scores["positive"]]
    picked = probabilities[known, true_ids[known]]
    return scores | {
        **_ranking_scores(true_ids[:, None] == np.arange(num_classes), probabilities, chosen),
        "ece": calibration_error(probabilities.max(axis=1), answers == true_ids),
        "loss": _mean(-np.log(np.clip(picked, _SMALLEST_PROBABILITY, None))),
    }


def single_label_answer_scores(
    true_ids: np.ndarray,
    predicted_ids: np.ndarray,
    labels: Sequence[str],
    positive: str | None = None,
    *,
    num_classes: int | None = None,
) -> dict[str, Any]:
    """Scores bare answers, of which no probability is known, such as the baseline's.

    Args:
        true_ids: int [R], positions in `labels`.
        predicted_ids: int [R], positions in `labels`.
        labels: Names of all labels.
        positive: See `single_label_scores`.
        num_classes: How many of `labels` the model knows (C); None means all.

    Returns:
        rows, accuracy, macro_f1, micro_f1, weighted_f1; precision and recall (macro), or precision, recall
        and f1 of the positive label with its name as `positive`; per_class {label: precision, recall, f1,
        support}; confusion_matrix (rows are the true labels, in the order of `labels`).

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
    matrix = confusion_matrix(true_ids, predicted_ids, len(labels))
    counts = matrix_counts(matrix)
    scores = _count_scores(counts, labels, occurring(counts), len(true_ids))
    scores["accuracy"] = _mean(true_ids == predicted_ids)
    if positive is not None:
        if positive not in labels:
            raise InputError(f"positive label: expected one of {', '.join(labels)}; got {positive!r}")
        scores["positive"] = positive
        for name, of in (("f1", f1), ("precision", precision), ("recall", recall)):
            scores[name] = float(of(counts)[list(labels).index(positive)]) if len(true_ids) else None
    scores["confusion_matrix"] = matrix.tolist()
    return scores


def multi_label_scores(
    true: np.ndarray,
    probabilities: np.ndarray,
    labels: Sequence[str],
    thresholds: np.ndarray,
) -> dict[str, Any]:
    """Scores probabilities of labels that may hold together; answered are those that reach their threshold.

    Args:
        true: int8 [R, L], 0 or 1, one column for each of `labels`.
        probabilities: float [R, C], C at most L.
        labels: L names; from C on, those seen only in the test rows.
        thresholds: float [C]; compared in float32, as the model does.

    Returns:
        The keys of `multi_label_answer_scores`, and roc_auc and average_precision (macro over the labels that
        have both kinds of rows), ece (of all (row, label) probabilities pooled, 15 equal-width bins) and loss
        (mean binary cross-entropy).

    Raises:
        ValueError: Shapes do not fit or a probability is not finite.
    """
    true = np.asarray(true)
    probabilities = _checked(probabilities, len(true), len(labels))
    num_classes = probabilities.shape[1]
    answers = np.zeros((len(true), len(labels)), np.int8)
    answers[:, :num_classes] = probabilities.astype(np.float32) >= np.asarray(thresholds, np.float32)
    scores = multi_label_answer_scores(true, answers, labels)
    known = true[:, :num_classes] != 0
    picked = np.where(known, probabilities, 1.0 - probabilities)
    return scores | {
        **_ranking_scores(known, probabilities, range(num_classes)),
        "ece": calibration_error(probabilities.ravel(), known.ravel()),
        "loss": _mean(-np.log(np.clip(picked, _SMALLEST_PROBABILITY, None))),
    }


def multi_label_answer_scores(
    true: np.ndarray, predicted: np.ndarray, labels: Sequence[str]
) -> dict[str, Any]:
    """Scores bare answers of several labels a row, such as the baseline's.

    Args:
        true: 0 or 1, [R, L].
        predicted: 0 or 1, [R, L].
        labels: L names.

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


def calibration_error(confidences: np.ndarray, right: np.ndarray) -> float | None:
    """Gives the expected calibration error: the mean distance between confidence and share of right answers.

    Args:
        confidences: float [N], in [0, 1].
        right: bool [N].

    Returns:
        The distance in each of 15 equal-width bins (open below, closed above), weighted by the bins' rows;
        None without rows.
    """
    if not len(confidences):
        return None
    bins = calibration_bins(confidences)
    gaps = np.bincount(bins, weights=confidences - right, minlength=CALIBRATION_BINS)
    return float(np.abs(gaps).sum() / len(confidences))


def calibration_bins(confidences: np.ndarray) -> np.ndarray:
    """The bin of each confidence in [0, 1], int64 [N]: 15 of equal width, open below and closed above."""
    return np.clip(np.ceil(confidences * CALIBRATION_BINS).astype(np.int64) - 1, 0, CALIBRATION_BINS - 1)


def _checked(probabilities: np.ndarray, num_rows: int, num_labels: int) -> np.ndarray:
    probabilities = np.asarray(probabilities, np.float64)
    if (
        probabilities.ndim != 2
        or len(probabilities) != num_rows
        or not 0 < probabilities.shape[1] <= num_labels
    ):
        expected = f"[{num_rows}, C] with C from 1 to {num_labels}"
        raise ValueError(f"expected probabilities {expected}, got {probabilities.shape}")
    if not np.isfinite(probabilities).all():
        raise ValueError(
            f"probabilities of row {int(np.argwhere(~np.isfinite(probabilities))[0, 0])} are not finite"
        )
    return probabilities


def _count_scores(
    counts: LabelCounts, labels: Sequence[str], averaged: np.ndarray, num_rows: int
) -> dict[str, Any]:
    columns = {"precision": precision(counts), "recall": recall(counts), "f1": f1(counts)}
    averages = {
        "macro_f1": mean_over(columns["f1"], averaged),
        "micro_f1": micro_f1(counts),
        "weighted_f1": mean_over(columns["f1"], counts.actual),
        "precision": mean_over(columns["precision"], averaged),
        "recall": mean_over(columns["recall"], averaged),
    }
    per_class = {
        label: {name: float(column[index]) for name, column in columns.items()}
        | {"support": int(counts.actual[index])}
        for index, label in enumerate(labels)
    }
    named = {name: float(value) if num_rows else None for name, value in averages.items()}
    return {"rows": num_rows, "accuracy": None, **named, "per_class": per_class}


def _ranking_scores(true: np.ndarray, scores: np.ndarray, columns: Sequence[int]) -> dict[str, float | None]:
    """Averages ROC-AUC and average precision over the columns that have both kinds of rows."""
    usable = [column for column in columns if true[:, column].any() and not true[:, column].all()]
    return {
        "roc_auc": _mean([roc_auc_score(true[:, column], scores[:, column]) for column in usable]),
        "average_precision": _mean(
            [average_precision_score(true[:, column], scores[:, column]) for column in usable]
        ),
    }


def _mean(values: np.ndarray | list[float]) -> float | None:
    return float(np.mean(values)) if np.size(values) else None
