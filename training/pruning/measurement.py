"""Measures the heads of a run on labeled rows."""

import dataclasses
import logging
from pathlib import Path
from typing import Any

from kmha.bundle.bundle import Bundle
from kmha.errors import InputError
from training.io.examples import ColumnOverrides
from training.pruning.evaluation_rows import EvaluationRows
from training.pruning.importance import Importance, leave_one_head_out, measure_importance
from training.pruning.presentation import head_table, head_values, row_table, row_values
from training.pruning.prunable_blocks import Block, Group, prunable_groups

logger = logging.getLogger("kmha")


@dataclasses.dataclass(frozen=True)
class Measurement:
    """Importance and scores of the heads of a run.

    Attributes:
        all_rows: All rows of the file, with the run's bundle.
        number: Number of rows drawn.
        scores: Scores of the unpruned model on the rows drawn.
    """

    all_rows: EvaluationRows
    number: int
    groups: list[Group]
    importance: list[Importance]
    scores: dict[str, float]
    heads: list[dict[str, Any]]
    feed_forward: list[dict[str, Any]]

    @property
    def blocks(self) -> list[Block]:
        """The blocks of all groups."""
        return [block for group in self.groups for block in group.blocks]

    def values(self) -> dict[str, Any]:
        """As JSON values."""
        return {"rows": self.number, **self.scores, "heads": self.heads, "feed_forward": self.feed_forward}

    def lines(self) -> list[str]:
        """As lines of two tables."""
        scores = ", ".join(f"{name} {value:.4f}" for name, value in self.scores.items())
        heads = head_table(self.heads, self.scores)
        return [f"{scores} with all heads", *heads, "", *row_table(self.feed_forward)]


def measure(
    run: Path, data: Path, columns: ColumnOverrides, most: int, seed: int, scratch: Path
) -> Measurement:
    """Measures the heads of a run.

    Raises:
        InputError: The run or the rows are invalid, or the model has no heads.
    """
    bundle = Bundle.load(run)
    groups = prunable_groups(bundle.model)
    blocks = [block for group in groups for block in group.blocks]
    if not blocks:
        raise InputError(f"{run}: expected a model with attention blocks, got one without")
    all_rows = EvaluationRows.read(bundle, data, columns, scratch)
    rows = all_rows.sample(most, seed)
    number, heads = len(rows.part.rows), sum(block.heads for block in blocks)
    logger.info(f"{number:,} of {len(all_rows.part.rows):,} rows of {data}, {heads} heads")
    importance = measure_importance(rows, blocks)
    scores = rows.evaluator().scores()
    of_heads = head_values(blocks, importance, leave_one_head_out(rows, blocks))
    return Measurement(all_rows, number, groups, importance, scores, of_heads, row_values(blocks, importance))
