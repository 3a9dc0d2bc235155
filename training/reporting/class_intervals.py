"""Intervals for the scores of each label alone."""

import numpy as np

from training.confusion import LabelCounts, f1, precision, recall
from training.intervals import percentile_interval, resample_weights

RESAMPLES, LEVEL = 1000, 0.95
SCORES = {"precision": precision, "recall": recall, "f1": f1}


def class_intervals(hits: np.ndarray, given: np.ndarray, actual: np.ndarray) -> list[dict[str, list[float]]]:
    """Percentile bootstrap intervals of precision, recall and F1 of each label.

    What is drawn are rows, or sentences, whose words are no independent draws.

    Args:
        hits: How often each label is both true and given in each row, int [R, C].
        given: How often it is given, int [R, C].
        actual: How often it is true, int [R, C].

    Returns:
        For each label {"precision", "recall", "f1"}, each [lower, upper]; empty without rows.
    """
    if not len(hits):
        return []
    columns = zip(np.asarray(hits).T, np.asarray(given).T, np.asarray(actual).T, strict=True)
    return [_of_one(np.stack(each, axis=1).astype(np.int64)) for each in columns]


def single_label_counts(
    true: np.ndarray, given: np.ndarray, num_labels: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Hits, given and actual of rows with one label and one answer each, bool [R, C]; see `class_intervals`.

    Args:
        true: int [R].
        given: int [R].
        num_labels: C.
    """
    wanted, answered = (np.asarray(ids)[:, None] == np.arange(num_labels) for ids in (true, given))
    return wanted & answered, answered, wanted


def _of_one(counts: np.ndarray) -> dict[str, list[float]]:
    """The intervals of one label, from its counts in each row, int64 [R, 3]."""
    # Rows with the same counts are alike; as one number each they are sorted quickly.
    base = int(counts.max(initial=0)) + 1
    keys, sizes = np.unique(counts @ np.array([base * base, base, 1]), return_counts=True)
    alike = np.stack([keys // (base * base), keys // base % base, keys % base], axis=1)
    drawn = np.concatenate([weights @ alike for weights in resample_weights(sizes, 0, RESAMPLES)])
    found = LabelCounts(*drawn.T)
    return {name: list(percentile_interval(score(found), LEVEL)) for name, score in SCORES.items()}
