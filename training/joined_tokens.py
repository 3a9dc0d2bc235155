"""The token ids of two sets one after another, so that batches may mix their rows."""

from typing import Any

import numpy as np

from training.sentences import SentenceTokens
from training.spool import Spool


class JoinedSpool:
    """Two spools read as one; for the attributes and methods see `Spool`.

    Args:
        first: Has the rows from 0 on.
        second: Has the rows after those; of the same dtype.
    """

    def __init__(self, first: Spool, second: Spool):
        self._parts = first, second
        self.dtype = first.dtype
        self.lengths = np.concatenate([first.lengths, second.lengths])

    def __len__(self) -> int:
        """Counts the rows."""
        return len(self.lengths)

    def read(self, row: int) -> np.ndarray:
        """Reads one row, 1-D."""
        return self.gather(np.array([row]))[0]

    def gather(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The elements of some rows one after another, in the order asked for, and their lengths int32 [R]."""
        rows = np.asarray(rows, np.int64)
        lengths = self.lengths[rows]
        flat = np.empty(int(lengths.sum(dtype=np.int64)), self.dtype)
        border = len(self._parts[0])
        late = rows >= border
        of_late = np.repeat(late, lengths)
        flat[~of_late] = self._parts[0].gather(rows[~late])[0]
        flat[of_late] = self._parts[1].gather(rows[late] - border)[0]
        return flat, lengths


def joined_tokens(first: Any, second: Any) -> Any:
    """The tokens of a set and, after its rows, of another one; as `Inputs.tokens` holds them of each.

    Args:
        first: A spool for each input, or of sentences `SentenceTokens`.
        second: The same of other rows, cut by the same preprocessor.
    """
    if not isinstance(first, SentenceTokens):
        return [JoinedSpool(*spools) for spools in zip(first, second, strict=True)]
    spellings = None
    if first.spellings is not None:
        spellings = JoinedSpool(first.spellings, second.spellings)
    return SentenceTokens(
        JoinedSpool(first.sequences, second.sequences),  # pyright: ignore  (reads as a spool does)
        JoinedSpool(first.starts, second.starts),  # pyright: ignore
        spellings,  # pyright: ignore
        np.concatenate([first.counts, second.counts]),
        np.concatenate([first.first_windows, second.first_windows[1:] + first.first_windows[-1]]),
    )
