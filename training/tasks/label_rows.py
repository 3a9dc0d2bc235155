"""Labels of rows that a model does not know: they count as errors under their own names."""

from collections.abc import Sequence

import numpy as np

from training.tasks.task import Part


def unknown_rows(part: Part, labels: Sequence[str]) -> dict[str, int]:
    """How many rows of a part have each label that is not among `labels`, by name."""
    ids, _ = part.examples.local_labels(part.rows)
    counts = np.bincount(ids, minlength=len(part.examples.label_names)).tolist()
    seen = sorted(zip(part.examples.label_names, counts, strict=True))
    return {name: count for name, count in seen if count and name not in set(labels)}


def with_unknown(part: Part, labels: Sequence[str]) -> list[str]:
    """The labels of the model, then those that only rows of this part have."""
    return [*labels, *unknown_rows(part, labels)]


def widened(answers: np.ndarray, width: int) -> np.ndarray:
    """Answers [R, C] with columns of zeros up to `width`, int8: unknown labels are never given."""
    return np.pad(answers.astype(np.int8), ((0, 0), (0, width - answers.shape[1])))
