"""What heads are worth, for a reader: lines of a table, JSON values, a picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from training.cli.text_table import format_table
from training.io.atomic_write import atomic_write
from training.pruning.importance import Importance
from training.pruning.prunable_blocks import Block

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
    """The feed-forward rows of every block as JSON values."""
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
    """Lines that show the heads; a score without a head is shown as its change."""
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
    """Lines that show the feed-forward rows of every block."""
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


def pruned_table(told: dict[str, Any]) -> list[str]:
    """Lines that show a run before and after, from what `training.pruning.prune_run.prune` tells."""
    scores = told["scores"]
    rows = [["", "before", "cut", "trained on"]]
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
        ("latency_ms", "ms a text", "{:.2f}"),
    ):
        values = told[name]
        rows.append([unit, shown.format(values["before"]), "", shown.format(values["after"])])
    return format_table(rows)


def draw(path: Path, blocks: Sequence[Block], heads: Sequence[dict[str, Any]], loss: float) -> None:
    """Draws each head of each block: what it is worth by its gate, and by leaving it out.

    Args:
        path: Where to write; its ending says what.
        blocks: From below.
        heads: What `head_values` gives.
        loss: Of the whole model.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    most = max(block.heads for block in blocks)
    figure = Figure(figsize=(3.2 + 1.1 * most, 1.6 + 0.5 * len(blocks)), layout="constrained")
    FigureCanvasAgg(figure)
    values = {
        "importance by its gate, nats": [each["importance"] for each in heads],
        "loss more without it, nats": [each[f"{LOSS}_without"] - loss for each in heads],
    }
    ends = np.cumsum([block.heads for block in blocks])[:-1]
    axes = figure.subplots(1, len(values), sharey=True, squeeze=False)[0]
    for place, (title, given) in zip(axes, values.items(), strict=True):
        table = np.full((len(blocks), most), np.nan)
        for row, part in enumerate(np.split(np.array(given), ends)):
            table[row, : len(part)] = part
        # Heads that hurt are as pale as those that do nothing.
        image = place.imshow(table, cmap="Blues", vmin=0, vmax=max(np.nanmax(table), 1e-12), aspect="auto")
        place.set(title=title, xlabel="head", xticks=range(most), xticklabels=range(1, most + 1))
        place.set_yticks(range(len(blocks)), [block.name for block in blocks])
        figure.colorbar(image, ax=place)
    with atomic_write(path, overwrite=True, flag="--picture") as beside:
        figure.savefig(beside, dpi=120, format=path.suffix[1:].lower())
