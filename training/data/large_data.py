"""Defines large data by the number of training rows, and samples rows of it."""

import dataclasses

import numpy as np

from training.data.split import Split
from training.io.types import Subset


@dataclasses.dataclass(frozen=True)
class Large:
    """Limits for large data: more than `rows` training rows.

    Attributes:
        rows: The row limit.
        seed: Seed of samples and of the row order.
    """

    rows: int
    seed: int

    def is_large(self, part: Subset) -> bool:
        """Whether the number of training rows exceeds the limit."""
        return len(part.rows) > self.rows

    @property
    def stretch_rows(self) -> int:
        """Maximum rows per stretch: the rows whose token ids are on disk while the next stretch is tokenized."""
        return max(1, self.rows // 2)

    @property
    def sample_rows(self) -> int:
        """Rows in the sample for vocabulary training, and the maximum of validation rows."""
        return max(1, self.rows // 10)

    def sampled(self, part: Subset) -> Subset:
        """The rows for vocabulary training: a random sample in file order for large data, otherwise all."""
        if not self.is_large(part):
            return part
        rng = np.random.default_rng([self.seed, 11])
        chosen = rng.choice(len(part.rows), self.sample_rows, replace=False, shuffle=False)
        return dataclasses.replace(part, rows=part.rows[np.sort(chosen)])


def with_fewer_validation_rows(parts: Split, large: Large) -> Split:
    """Limits a given validation set of large data to a random tenth of the row limit, for frequent evaluation."""
    rows = parts.validation_rows
    if len(parts.train_rows) <= large.rows or len(rows) <= large.sample_rows:
        return parts
    kept = np.sort(np.random.default_rng([large.seed, 17]).choice(rows, large.sample_rows, replace=False))
    summary = dataclasses.replace(
        parts.summary, validation_rows=len(kept), left_out_of_validation=len(rows) - len(kept)
    )
    return dataclasses.replace(parts, validation_rows=kept, summary=summary)


def held_out_fraction(fraction: float, rows: int, large_rows: int) -> float:
    """Validation fraction; for more than `large_rows` rows it is reduced, as if there were `large_rows` rows."""
    return fraction * min(1.0, large_rows / max(1, rows))
