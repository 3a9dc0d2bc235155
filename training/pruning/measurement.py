"""Everything that labelled rows say of the heads of a run."""

import dataclasses
import logging
from pathlib import Path
from typing import Any

from kmha.bundle.bundle import Bundle
from kmha.errors import InputError
from training.cli.column_flags import ColumnOverrides
from training.pruning.evaluation_rows import MeasuredRows
from training.pruning.importance import Importance, importances, without_each_head
from training.pruning.presentation import head_table, head_values, row_table, row_values
from training.pruning.prunable_blocks import Block, Group, prunable_groups

logger = logging.getLogger("kmha")


@dataclasses.dataclass(frozen=True)
class Measurement:
    """What was found.

    Attributes:
        all_rows: Every row of the file, with the run's bundle.
        number: How many rows were drawn.
        groups: The blocks of the model.
        found: What the parts of each block are worth.
        scores: Of the whole model on the rows drawn.
        heads: Every head, as JSON values.
        feed_forward: The feed-forward rows of every block, as JSON values.
    """

    all_rows: MeasuredRows
    number: int
    groups: list[Group]
    found: list[Importance]
    scores: dict[str, float]
    heads: list[dict[str, Any]]
    feed_forward: list[dict[str, Any]]

    @property
    def blocks(self) -> list[Block]:
        """Of all groups."""
        return [block for group in self.groups for block in group.blocks]

    def values(self) -> dict[str, Any]:
        """As JSON values."""
        return {"rows": self.number, **self.scores, "heads": self.heads, "feed_forward": self.feed_forward}

    def lines(self) -> list[str]:
        """As two tables."""
        scores = ", ".join(f"{name} {value:.4f}" for name, value in self.scores.items())
        heads = head_table(self.heads, self.scores)
        return [f"{scores} with all heads", *heads, "", *row_table(self.feed_forward)]


def measure(
    run: Path, data: Path, given: ColumnOverrides, most: int, seed: int, scratch: Path
) -> Measurement:
    """Measures the heads of a run.

    Args:
        run: A run folder.
        data: Labelled rows.
        given: Names of columns that are others than in training.
        most: Rows to draw; 0: all.
        seed: Draws them.
        scratch: Where the rows are kept meanwhile.

    Raises:
        InputError: The run or the rows cannot be used, or there is no head.
    """
    bundle = Bundle.load(run)
    groups = prunable_groups(bundle.model)
    blocks = [block for group in groups for block in group.blocks]
    if not blocks:
        raise InputError(f"{run}: expected a run with blocks of attention, got one without")
    all_rows = MeasuredRows.read(bundle, data, given, scratch)
    rows = all_rows.drawn(most, seed)
    number, heads = len(rows.part.rows), sum(block.heads for block in blocks)
    logger.info(f"{number:,} of {len(all_rows.part.rows):,} rows of {data}, {heads} heads")
    found = importances(rows, blocks)
    scores = rows.evaluated().scores()
    of_heads = head_values(blocks, found, without_each_head(rows, blocks))
    return Measurement(all_rows, number, groups, found, scores, of_heads, row_values(blocks, found))
