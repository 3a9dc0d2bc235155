"""Presents the importance of heads: tables, JSON values, and a figure."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from training.cli.parser import format_table
from training.pruning.importance import Importance
from training.pruning.prunable_blocks import Block
from training.reporting.matplotlib_style import write_figure

Scores = dict[str, float]
LOSS = "loss"


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
        "importance by gate gradient, nats": [each["importance"] for each in heads],
        "increase of the loss without it, nats": [each[f"{LOSS}_without"] - loss for each in heads],
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
