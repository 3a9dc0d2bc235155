"""Measures the heads of a run on labeled rows, and presents them: tables, JSON values, and a figure."""

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kmha.bundle.bundle import Bundle
from kmha.errors import InputError
from training.cli.parser import format_table
from training.io.examples import ColumnOverrides
from training.pruning.importance import (
    Block,
    EvaluationRows,
    Group,
    Importance,
    leave_one_head_out,
    measure_importance,
    prunable_groups,
)
from training.reporting.matplotlib_style import write_figure

Scores = dict[str, float]
LOSS = "loss"

logger = logging.getLogger("kmha")


def head_values(
    blocks: Sequence[Block], found: Sequence[Importance], without: Sequence[Sequence[Scores]]
) -> list[dict[str, Any]]:
    """Every head as JSON values."""
    values = []
    for block, importance, scores in zip(blocks, found, without, strict=True):
        for head in range(block.heads):
            distance = float(importance.distance[head])
            values.append(
                {
                    "block": block.name,
                    "head": head + 1,
                    "importance": float(importance.heads[head]),
                    **{f"{name}_without": value for name, value in scores[head].items()},
                    "entropy": float(importance.entropy[head]),
                    "distance": None if np.isnan(distance) else distance,
                }
            )
    return values


def row_values(blocks: Sequence[Block], found: Sequence[Importance]) -> list[dict[str, Any]]:
    """Feed-forward rows of every block as JSON values."""
    return [
        {
            "block": block.name,
            "rows": block.rows,
            "importance": float(importance.rows.mean()),
            "quartiles": np.quantile(importance.rows, (0.25, 0.5, 0.75)).tolist(),
        }
        for block, importance in zip(blocks, found, strict=True)
    ]


def head_table(heads: Sequence[dict[str, Any]], scores: Scores) -> list[str]:
    """A table of the heads; scores without a head are shown as differences."""
    names = list(scores)
    header = ["head", "importance", *(f"{name} without" for name in names), "entropy", "distance"]
    rows = [
        [
            f"{each['block']}, head {each['head']}",
            f"{each['importance']:.2e}",
            *(f"{each[f'{name}_without'] - scores[name]:+.4f}" for name in names),
            f"{each['entropy']:.2f}",
            "" if each["distance"] is None else f"{each['distance']:.1f}",
        ]
        for each in heads
    ]
    return format_table([header, *rows])


def row_table(values: Sequence[dict[str, Any]]) -> list[str]:
    """A table of the feed-forward rows of every block."""
    header = ["feed-forward", "rows", "importance", "weakest quarter below", "strongest quarter above"]
    rows = [
        [
            each["block"],
            f"{each['rows']:,}",
            f"{each['importance']:.2e}",
            *(f"{each['quartiles'][place]:.2e}" for place in (0, 2)),
        ]
        for each in values
    ]
    return format_table([header, *rows])


def pruned_table(result: dict[str, Any]) -> list[str]:
    """A table of a run before and after pruning, from the result of `write_pruned_run`."""
    scores = result["scores"]
    rows = [["", "before", "pruned", "fine-tuned"]]
    rows += [
        [name, *(f"{scores[state][name]:.4f}" for state in ("before", "cut", "after"))]
        for name in scores["before"]
    ]
    for name, unit, shown in (
        ("heads", "heads", "{:,}"),
        ("feed_forward_rows", "feed-forward rows", "{:,}"),
        ("weights", "weights", "{:,}"),
        ("block_weights", "of these in blocks", "{:,}"),
        ("bytes", "bytes of model.keras", "{:,}"),
        ("latency_ms", "ms per text", "{:.2f}"),
    ):
        values = result[name]
        rows.append([unit, shown.format(values["before"]), "", shown.format(values["after"])])
    return format_table(rows)


def write_heads_figure(
    path: Path, blocks: Sequence[Block], heads: Sequence[dict[str, Any]], loss: float
) -> None:
    """Draws each head of each block: importance by its gate, and increase of the loss without it."""
    most = max(block.heads for block in blocks)
    values = {
        "importance by gate gradient (loss)": [each["importance"] for each in heads],
        "increase of the loss without it": [each[f"{LOSS}_without"] - loss for each in heads],
    }
    ends = np.cumsum([block.heads for block in blocks])[:-1]

    def draw(figure: Any) -> None:
        panels = figure.subplots(1, len(values), sharey=True, squeeze=False)[0]
        for axes, (title, numbers) in zip(panels, values.items(), strict=True):
            table = np.full((len(blocks), most), np.nan)
            for row, part in enumerate(np.split(np.array(numbers), ends)):
                table[row, : len(part)] = part
            # Heads that increase the loss have the color of heads without effect.
            vmax = max(np.nanmax(table), 1e-12)
            image = axes.imshow(table, cmap="Blues", vmin=0, vmax=vmax, aspect="auto")
            axes.set(title=title, xlabel="head", xticks=range(most), xticklabels=range(1, most + 1))
            axes.set_yticks(range(len(blocks)), [block.name for block in blocks])
            figure.colorbar(image, ax=axes)

    write_figure(path, (3.2 + 1.1 * most, 1.6 + 0.5 * len(blocks)), draw, "--picture")


@dataclasses.dataclass(frozen=True)
class Measurement:
    """Importance and scores of the heads of a run."""

    all_rows: EvaluationRows  # of the file, with the run's bundle
    number: int  # of rows drawn
    groups: list[Group]
    importance: list[Importance]
    scores: dict[str, float]  # of the unpruned model on the rows drawn
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
    """Measures the heads of a run; raises InputError if the run or the rows are invalid, or it has no heads."""
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
