"""From how many rows on data are large, and what is done with some of the rows then."""

import dataclasses

import numpy as np

from training.data.split import Split
from training.io.types import Subset


@dataclasses.dataclass(frozen=True)
class Large:
    """What more training rows than these mean; everything follows from their number.

    Attributes:
        rows: More training rows than this are large data.
        seed: Decides which rows a sample has, and the order of all.
    """

    rows: int
    seed: int

    def is_large(self, part: Subset) -> bool:
        """Whether the training rows are."""
        return len(part.rows) > self.rows

    @property
    def stretch_rows(self) -> int:
        """Most rows whose tokens are on disk at a time, while those of the next stretch are cut."""
        return max(1, self.rows // 2)

    @property
    def sample_rows(self) -> int:
        """Rows from which a vocabulary is learnt, and most of those given to validate on."""
        return max(1, self.rows // 10)

    def sampled(self, part: Subset) -> Subset:
        """The rows to learn a vocabulary from: of large data a random sample in the order of the file, else all."""
        if not self.is_large(part):
            return part
        rng = np.random.default_rng([self.seed, 11])
        chosen = rng.choice(len(part.rows), self.sample_rows, replace=False, shuffle=False)
        return dataclasses.replace(part, rows=part.rows[np.sort(chosen)])


def with_fewer_validation_rows(parts: Split, large: Large) -> Split:
    """Leaves out validation rows of large data beyond a tenth of the limit, by a seeded draw: they are judged often.

    Args:
        parts: Of which the validation rows were given, not held out.
        large: From how many training rows on data are large.
    """
    rows = parts.validation_rows
    if len(parts.train_rows) <= large.rows or len(rows) <= large.sample_rows:
        return parts
    kept = np.sort(np.random.default_rng([large.seed, 17]).choice(rows, large.sample_rows, replace=False))
    summary = dataclasses.replace(
        parts.summary, validation_rows=len(kept), left_out_of_validation=len(rows) - len(kept)
    )
    return dataclasses.replace(parts, validation_rows=kept, summary=summary)


def held_out_fraction(fraction: float, rows: int, large_rows: int) -> float:
    """The share of rows to hold out for validation: of large data as many rows as of `large_rows`.

    Args:
        fraction: The share wanted, in [0, 1).
        rows: Given.
        large_rows: More than these are large data.
    """
    return fraction * min(1.0, large_rows / max(1, rows))
