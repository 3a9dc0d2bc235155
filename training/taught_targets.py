"""What a taught model's loss compares with: the labels of rows, and beside them the teacher's answers on disk."""

from typing import Any

import numpy as np
from keras import ops


class TaughtTargets:
    """An array [R, L + 1 + C] that is put together when rows of it are asked for.

    Columns: the labels, 1 where a row has them, the teacher's answers.

    Args:
        labels: [R, …] as the task wants them, of rows with labels alone; the first of all rows.
        answers: float32 [R', C], R' at least R, perhaps on disk.
        order: Which of their columns belongs to each label, integers [C].
        filler: The labels of rows that have none.

    Attributes:
        shape: (R', L + 1 + C).
        dtype: float32, which holds whole numbers exactly up to 2**24.
    """

    def __init__(self, labels: np.ndarray, answers: np.ndarray, order: np.ndarray, filler: Any = 0):
        self._labels, self._answers, self._order, self._filler = labels, answers, order, filler
        self._is_flat = labels.ndim == 1
        self._width = 1 if self._is_flat else labels.shape[1]
        self.dtype = np.dtype(np.float32)
        self.shape = (len(answers), self._width + 1 + answers.shape[1])

    def __len__(self) -> int:
        """Counts the rows."""
        return self.shape[0]

    def __getitem__(self, rows) -> np.ndarray:
        """Some rows, by their numbers, integers [B], or by a slice."""
        rows = np.arange(*rows.indices(len(self))) if isinstance(rows, slice) else np.asarray(rows)
        result = np.empty((len(rows), self.shape[1]), np.float32)
        labelled = rows < len(self._labels)
        result[:, : self._width] = self._filler
        own = self._labels[rows[labelled]]
        result[labelled, : self._width] = own[:, None] if self._is_flat else own
        result[:, self._width] = labelled
        result[:, self._width + 1 :] = self._answers[rows][:, self._order]
        return result

    def parts(self, targets) -> tuple[Any, Any, Any]:
        """What a batch [B, …, L + 1 + C] holds: labels as the task wants them, 0 or 1 [B, …], and answers [B, …, C]."""
        width = self._width
        labels = targets[..., 0] if self._is_flat else targets[..., :width]
        return (
            ops.cast(labels, self._labels.dtype.name),
            targets[..., width],
            targets[..., width + 1 :],
        )
