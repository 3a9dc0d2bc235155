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
    result = np.zeros((len(source.rows), model.num_labels), np.float32)
    for plan, logits in outputs:
        result[plan.rows] = np.asarray(model.probabilities(logits))[: len(plan.rows)]
    return result


def random_probabilities(model: Any, rows: int) -> np.ndarray:
    """float32 [R, C] of a model that knows nothing."""
    logits = np.random.default_rng(0).normal(size=(rows, model.num_labels))
    return np.asarray(model.probabilities(logits.astype(np.float32)))
