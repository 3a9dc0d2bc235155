"""What the answers of candidates to the same test rows are worth, alone and against one of them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from training.comparison.candidates import HEADS
from training.data.load import Data
from training.io.example_store import label_ids
from training.metrics.bootstrap import percentile_interval, resample_weights, single_label_intervals
from training.metrics.classification import single_label_answer_scores

_OTHER = "(a label that these rows do not have)"
RESAMPLES, LEVEL = 1000, 0.95


def names(data: Data) -> list[str]:
    """What answers may be: the labels of the training rows, those that only test rows have, and any other."""
    assert data.test is not None
    return [*label_ids(data.test.examples, data.test.rows, data.labels)[1], _OTHER]


def scored(answers: Mapping[str, list[int]], data: Data) -> dict[str, dict[str, Any]]:
    """Scores by candidate, JSON values.

    Args:
        answers: Of each candidate the places of its answers to the test rows in `names`.
        data: The parts of the data.

    Returns:
        "accuracy", "macro_f1", their "intervals", and "difference": accuracy less that of the "reference" with its
        "interval", both from the same resamples of the rows; the reference itself has none.
    """
    assert data.test is not None
    true, _ = label_ids(data.test.examples, data.test.rows, data.labels)
    given = {name: np.asarray(ids, np.int64) for name, ids in answers.items()}
    right = {name: ids == true for name, ids in given.items()}
    reference = reference_of({name: float(hits.mean()) for name, hits in right.items()})
    found = {}
    for name, ids in given.items():
        scores = single_label_answer_scores(true, ids, names(data), num_classes=len(data.labels))
        found[name] = {
            "accuracy": scores["accuracy"],
            "macro_f1": scores["macro_f1"],
            "intervals": {key: list(ends) for key, ends in single_label_intervals(true, ids).items()},
        }
        if name != reference:
            found[name]["difference"] = difference(right[name], right[reference]) | {"reference": reference}
    return found


def reference_of(accuracies: Mapping[str, float]) -> str:
    """The candidate that others are held against: attention with its heads, or where it is not there the best."""
    return HEADS if HEADS in accuracies else max(accuracies, key=lambda name: accuracies[name])


def difference(right: np.ndarray, other: np.ndarray, seed: int = 0) -> dict[str, Any]:
    """How much more of the same rows one gets right than another.

    Args:
        right: bool [R], R at least 1.
        other: bool [R].
        seed: Makes the interval repeatable.

    Returns:
        "value" and "interval", the 95 % bootstrap interval over rows, each of which both have answered.
    """
    ahead, counts = np.unique(right.astype(np.int64) - other.astype(np.int64), return_counts=True)
    chunks = [weights @ ahead / len(right) for weights in resample_weights(counts, seed, RESAMPLES)]
    interval = percentile_interval(np.concatenate(chunks), LEVEL)
    return {"value": float(ahead @ counts / len(right)), "interval": list(interval)}
