"""Scores of candidates on the same test rows, and differences to a reference."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from training.comparison.candidates import HEADS
from training.data.load import Data
from training.io.examples import label_ids
from training.metrics.bootstrap import (
    Resampling,
    percentile_interval,
    resample_weights,
    single_label_intervals,
)
from training.metrics.classification import single_label_prediction_scores

_OTHER = "(a label that these rows do not have)"
RESAMPLES, LEVEL = 1000, 0.95


def prediction_names(data: Data) -> list[str]:
    """Possible predictions: the labels of the training rows, labels of test rows only, and any other label."""
    assert data.test is not None
    return [*label_ids(data.test.examples, data.test.rows, data.labels)[1], _OTHER]


def score_predictions(predictions: Mapping[str, list[int]], data: Data) -> dict[str, dict[str, Any]]:
    """Scores the predictions for the test rows by candidate, as indices in `prediction_names`.

    Returns:
        "accuracy", "macro_f1", their "intervals", and except for the reference "difference": accuracy minus that of the
        "reference", with its "interval" from paired resamples of the rows.
    """
    assert data.test is not None
    true, _ = label_ids(data.test.examples, data.test.rows, data.labels)
    arrays = {name: np.asarray(ids, np.int64) for name, ids in predictions.items()}
    correct = {name: ids == true for name, ids in arrays.items()}
    reference = reference_of({name: float(hits.mean()) for name, hits in correct.items()})
    found = {}
    for name, ids in arrays.items():
        scores = single_label_prediction_scores(
            true, ids, prediction_names(data), num_classes=len(data.labels)
        )
        found[name] = {
            "accuracy": scores["accuracy"],
            "macro_f1": scores["macro_f1"],
            "intervals": single_label_intervals(true, ids),
        }
        if name != reference:
            found[name]["difference"] = paired_difference(correct[name], correct[reference]) | {
                "reference": reference
            }
    return found


def reference_of(accuracies: Mapping[str, float]) -> str:
    """The reference: attention with several heads, or the best candidate if that is missing."""
    return HEADS if HEADS in accuracies else max(accuracies, key=lambda name: accuracies[name])


def paired_difference(correct: np.ndarray, other: np.ndarray, seed: int = 0) -> dict[str, Any]:
    """Difference of two accuracies on the same rows; `correct` and `other` are bool [R].

    Returns:
        "value" and "interval", the 95 % paired bootstrap interval over rows.
    """
    ahead, counts = np.unique(correct.astype(np.int64) - other.astype(np.int64), return_counts=True)
    chunks = [
        weights @ ahead / len(correct) for weights in resample_weights(counts, Resampling(seed, RESAMPLES))
    ]
    interval = percentile_interval(np.concatenate(chunks), LEVEL)
    return {"value": float(ahead @ counts / len(correct)), "interval": list(interval)}
