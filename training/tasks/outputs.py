"""Predictions of tasks whose rows have a probability for each label."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from training.io.types import Subset


def row_probabilities(model: Any, source: Any, outputs: Iterable[tuple[Any, Any]]) -> np.ndarray:
    """Probabilities float32 [R, C], in the order of the source's rows.

    Args:
        model: Has `probabilities`.
        source: The rows.
        outputs: (plan, logits [B, C]) for each batch.
    """
    batches = ((plan, model.probabilities(logits)) for plan, logits in outputs)
    return row_outputs(model.num_labels, source, batches)


def row_outputs(width: int, source: Any, outputs: Iterable[tuple[Any, Any]]) -> np.ndarray:
    """The outputs of all batches as float32 [R, C], in the order of the source's rows.

    Args:
        width: C.
        source: The rows.
        outputs: (plan, outputs [B, C]) for each batch.
    """
    result = np.zeros((len(source.rows), width), np.float32)
    for plan, found in outputs:
        result[plan.rows] = np.asarray(found)[: len(plan.rows)]
    return result


def random_probabilities(model: Any, rows: int) -> np.ndarray:
    """Probabilities float32 [R, C] of random logits."""
    logits = np.random.default_rng(0).normal(size=(rows, model.num_labels))
    return np.asarray(model.probabilities(logits.astype(np.float32)))


def unknown_label_counts(part: Subset, labels: Sequence[str]) -> dict[str, int]:
    """The number of rows of each label of a part that is not in `labels`, by name."""
    ids, _ = part.examples.local_labels(part.rows)
    counts = np.bincount(ids, minlength=len(part.examples.label_names)).tolist()
    seen = sorted(zip(part.examples.label_names, counts, strict=True))
    return {name: count for name, count in seen if count and name not in set(labels)}


def with_unknown_labels(part: Subset, labels: Sequence[str]) -> list[str]:
    """The labels of the model, then those that only rows of this part have."""
    return [*labels, *unknown_label_counts(part, labels)]


def pad_labels(predicted: np.ndarray, width: int) -> np.ndarray:
    """Predictions [R, C] padded with zeros to int8 [R, width]: unknown labels are never predicted."""
    return np.pad(predicted.astype(np.int8), ((0, 0), (0, width - predicted.shape[1])))
