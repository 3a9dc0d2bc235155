"""What a model says of rows that have a probability for each label."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from training.data.types import Subset


def row_probabilities(model: Any, source: Any, outputs: Iterable[tuple[Any, Any]]) -> np.ndarray:
    """float32 [R, C], in the order of the source's rows.

    Args:
        model: Has `probabilities`.
        source: The rows.
        outputs: Of each batch its plan and its logits, [B, C].
    """
    batches = ((plan, model.probabilities(logits)) for plan, logits in outputs)
    return row_outputs(model.num_labels, source, batches)


def row_outputs(width: int, source: Any, outputs: Iterable[tuple[Any, Any]]) -> np.ndarray:
    """float32 [R, C], in the order of the source's rows.

    Args:
        width: C.
        source: The rows.
        outputs: Of each batch its plan and what it got, [B, C].
    """
    result = np.zeros((len(source.rows), width), np.float32)
    for plan, found in outputs:
        result[plan.rows] = np.asarray(found)[: len(plan.rows)]
    return result


def random_probabilities(model: Any, rows: int) -> np.ndarray:
    """float32 [R, C] of a model that knows nothing."""
    logits = np.random.default_rng(0).normal(size=(rows, model.num_labels))
    return np.asarray(model.probabilities(logits.astype(np.float32)))


def unknown_rows(part: Subset, labels: Sequence[str]) -> dict[str, int]:
    """How many rows of a part have each label that is not among `labels`, by name."""
    ids, _ = part.examples.local_labels(part.rows)
    counts = np.bincount(ids, minlength=len(part.examples.label_names)).tolist()
    seen = sorted(zip(part.examples.label_names, counts, strict=True))
    return {name: count for name, count in seen if count and name not in set(labels)}


def with_unknown(part: Subset, labels: Sequence[str]) -> list[str]:
    """The labels of the model, then those that only rows of this part have."""
    return [*labels, *unknown_rows(part, labels)]


def widened(answers: np.ndarray, width: int) -> np.ndarray:
    """Answers [R, C] with columns of zeros up to `width`, int8: unknown labels are never given."""
    return np.pad(answers.astype(np.int8), ((0, 0), (0, width - answers.shape[1])))
