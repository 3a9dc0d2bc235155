"""What a model says of rows that have a probability for each label."""

from collections.abc import Iterable
from typing import Any

import numpy as np


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
