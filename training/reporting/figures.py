"""The pictures of a report, each with a description in words, and reliability diagrams as files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from training.metrics.classification import CALIBRATION_BINS, ReliabilityBins
from training.reporting.blocks import Picture, format_score, score_name
from training.reporting.matplotlib_style import (
    ACCENT,
    FILL,
    INK,
    OTHER,
    QUIET,
    drawable,
    name_width,
    picture,
    write_figure,
)

# Confusion matrices with more labels have no numbers in their cells, or are not drawn at all.
MAX_NUMBERED_LABELS, MAX_DRAWN_LABELS = 16, 60
_LENGTH_BINS = 40
_INK_ON_FILL = "#101114"


def learning_curves(
    history: Sequence[dict[str, Any]], metric: str, best: int | None, name: str = "epoch"
) -> list[Picture]:
    """Loss and metric by epoch, from the history of metrics.json.

    `best` is the epoch of the saved weights, from 0; -1: the initial weights; None: not known. `name` is the unit of
    the x axis: "epoch", or "part" of an epoch of large data.
    """
    epochs = [each["epoch"] + 1 for each in history]
    shown = score_name(metric)
    saved = ""
    if best is not None:
        saved = f"; saved weights: {'before training' if best < 0 else f'{name} {best + 1}'}"
    count = f"one {name}" if len(epochs) == 1 else f"{len(epochs)} {name}s"

    def curves(title: str, keys: dict[str, tuple[str, str]]) -> Picture:
        lines = {label: ([each[key] for each in history], color) for key, (label, color) in keys.items()}

        def draw(figure: Any) -> None:
            axes = figure.subplots()
            for label, (values, color) in lines.items():
                axes.plot(epochs, values, color=color, marker="o", ms=3, label=label)
            axes.set(
                title=title,
                xlabel=name,
                ylim=_limits([v for values, _ in lines.values() for v in values], title),
            )
            if best is not None:
                axes.axvline(best + 1, color=QUIET, linewidth=0.8, linestyle=":", label="saved")
            axes.grid(axis="y")
            axes.locator_params(axis="x", integer=True)
            axes.margins(x=0.04)
            axes.legend()

        values, _ = lines["validation"]
        ends = f"{title} of the validation rows from {format_score(values[0])} to {format_score(values[-1])}"
        return picture(f"Curve of {count}, {ends}{saved}", 4.3, 2.9, draw)

    losses = {"loss": ("training", OTHER), "val_loss": ("validation", ACCENT)}
    return [curves("loss", losses), curves(shown, {f"val_{metric}": ("validation", ACCENT)})]


def _limits(values: Sequence[float], title: str) -> tuple[float, float]:
    """Ends of an axis that do not magnify small changes: losses from 0, of a score at least a fifth of its range."""
    low, high = min(values), max(values)
    if title == "loss":
        return 0, 1.05 * high
    low = min(low - 0.02, (low + high) / 2 - 0.1, 0.8)
    return low, max(high + 0.02, low + 0.2)


def confusion(matrix: np.ndarray, names: Sequence[str], row_title: str, column_title: str) -> Picture:
    """A confusion matrix; the color of a cell is its share of its row."""
    matrix, shown = np.asarray(matrix), [drawable(name) for name in names]
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    left = max(map(name_width, shown)) + 0.4
    side = min(0.55, max(0.16, 6.5 / len(shown))) * len(shown)
    width, height = left + side + 0.2, left + side + 0.15

    def draw(figure: Any) -> None:
        axes = figure.add_axes((left / width, left / height, side / width, side / height))
        colors = np.zeros((*shares.shape, 4))
        colors[..., :3] = [int(FILL[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        # Transparent, so that light and dark pages show through.
        colors[..., 3] = shares
        axes.imshow(colors, interpolation="nearest", aspect="equal")
        axes.set_xticks(range(len(shown)), shown, rotation=90)
        axes.set_yticks(range(len(shown)), shown)
        axes.tick_params(length=0)
        axes.set_xlabel(column_title)
        axes.set_ylabel(row_title)
        # Titles at the edge of the picture, however long the names are.
        axes.yaxis.set_label_coords(-(left - 0.12) / side, 0.5)
        axes.xaxis.set_label_coords(0.5, -(left - 0.12) / side)
        if len(shown) <= MAX_NUMBERED_LABELS:
            for row, column in zip(*np.nonzero(matrix), strict=True):
                # A filled cell has the same ink on light and dark pages.
                color = _INK_ON_FILL if shares[row, column] > 0.5 else INK
                text = f"{matrix[row, column]:,}"
                axes.text(column, row, text, ha="center", va="center", color=color, fontsize=8)

    correct = np.trace(matrix) / max(1, matrix.sum())
    alt = f"Confusion matrix of {len(shown)} labels: {correct:.1%} of the counts are on the diagonal"
    return picture(alt, width, height, draw, fitted=False)


def reliability_diagram(models: Sequence[ReliabilityBins]) -> Picture:
    """Observed accuracy by predicted probability, models side by side."""
    errors = ", ".join(f"{each.title} {format_score(each.error)}" for each in models)
    several = len(models) > 1
    return picture(
        f"Reliability diagram; calibration error {errors}",
        4.1 * len(models) if several else 4.6,
        4.6 if several else 5.0,
        lambda figure: _draw_reliability(figure, models),
    )


def write_reliability_diagram(path: Path, models: Sequence[ReliabilityBins]) -> None:
    """Writes the reliability diagrams of models, all of the same rows, side by side into a file."""
    write_figure(path, (4.8 * len(models), 6.4), lambda figure: _draw_reliability(figure, models))


def _draw_reliability(figure: Any, models: Sequence[ReliabilityBins]) -> None:
    axes = figure.subplots(2, len(models), squeeze=False, height_ratios=(4, 1), sharex=True)
    edges = np.arange(CALIBRATION_BINS) / CALIBRATION_BINS
    for column, model in enumerate(models):
        _draw_bins(axes[0, column], model, edges)
        axes[1, column].bar(edges, model.rows, 0.9 / CALIBRATION_BINS, align="edge", color=QUIET)
        axes[1, column].set(xlim=(0, 1), xlabel="predicted probability")
    axes[0, 0].set_ylabel("accuracy")
    axes[1, 0].set_ylabel("predictions")
    handles = axes[0, 0].get_legend_handles_labels()
    columns = 3 if len(models) > 1 else 1
    figure.legend(*handles, loc="outside lower center", ncols=columns, frameon=False)


def _draw_bins(axes: Any, model: ReliabilityBins, edges: np.ndarray) -> None:
    width, filled = 1 / CALIBRATION_BINS, model.rows > 0
    accuracy, confidence = model.accuracy[filled], model.confidence[filled]
    places = edges[filled] + width / 2
    axes.bar(places, accuracy, width * 0.9, color=FILL, label="accuracy")
    gaps, starts = np.abs(confidence - accuracy), np.minimum(confidence, accuracy)
    style = {"color": "none", "edgecolor": ACCENT, "hatch": "////", "linewidth": 0.8}
    axes.bar(places, gaps, width * 0.9, bottom=starts, label="gap to the mean probability", **style)
    axes.plot([0, 1], [0, 1], color=INK, linestyle="--", linewidth=1, label="perfect calibration")
    error = "no rows" if model.error is None else f"calibration error {model.error:.4f}"
    axes.set(title=f"{model.title}\n{error}", xlim=(0, 1), ylim=(0, 1))
    axes.grid(color=QUIET, alpha=0.2)


def length_histogram(lengths: dict[str, np.ndarray], max_tokens: int, unit: str) -> Picture:
    """Histogram of text lengths in tokens, in percent of each split."""
    most = max(int(each.max(initial=1)) for each in lengths.values())
    step = max(1, -(-most // _LENGTH_BINS))
    edges = np.arange(0.5, most + step + 0.5, step)

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for (name, each), color in zip(lengths.items(), (OTHER, ACCENT, QUIET), strict=False):
            _draw_shares(axes, each, edges, color, name)
        if most >= max_tokens:
            label = f"maximum, {max_tokens}"
            axes.axvline(max_tokens, color=QUIET, linewidth=0.8, linestyle=":", label=label)
        axes.set(xlabel=f"tokens of {unit}", ylabel="% of the split")
        axes.grid(axis="y")
        axes.margins(x=0.02)
        axes.legend()

    medians = ", ".join(f"{name} {int(np.median(each))}" for name, each in lengths.items() if len(each))
    return picture(f"Histogram of lengths in tokens; medians: {medians}", 8.6, 2.7, draw)


def score_histogram(negatives: np.ndarray, positives: np.ndarray, threshold: float) -> Picture:
    """Histogram of the scores in [0, 1] of pairs with label 0, float [R], and 1, float [S]."""
    edges = np.linspace(0, 1, 41)

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for name, each, color in (("label 0", negatives, OTHER), ("label 1", positives, ACCENT)):
            _draw_shares(axes, each, edges, color, f"{name}, {len(each):,} pairs")
        axes.axvline(threshold, color=QUIET, linewidth=0.8, linestyle=":", label=f"threshold {threshold:.3f}")
        axes.set(xlabel="score", ylabel="% of the label's pairs", xlim=(0, 1))
        axes.grid(axis="y")
        axes.legend()

    means = " and ".join(f"{each.mean():.3f}" if len(each) else "none" for each in (negatives, positives))
    return picture(f"Histogram of scores of pairs labeled 0 and 1; means {means}", 8.6, 2.7, draw)


def _draw_shares(axes: Any, values: np.ndarray, edges: np.ndarray, color: str, label: str) -> None:
    shares = np.histogram(values, edges)[0] / max(1, len(values))
    axes.stairs(100 * shares, edges, color=color, linewidth=1.4, label=label)


def scatter(expected: np.ndarray, predicted: np.ndarray) -> Picture:
    """Expected and predicted numbers, float [R] each, as points; at most 2,000 of them."""
    step = max(1, -(-len(expected) // 2000))

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        axes.plot(expected[::step], predicted[::step], ".", color=OTHER, ms=3, alpha=0.5)
        ends = [min(expected.min(), predicted.min()), max(expected.max(), predicted.max())]
        axes.plot(ends, ends, color=INK, linestyle="--", linewidth=0.8)
        axes.set(xlabel="expected", ylabel="predicted", aspect="equal")
        axes.grid()

    return picture(f"Expected and predicted numbers of {len(expected):,} pairs", 4.6, 4.2, draw)
