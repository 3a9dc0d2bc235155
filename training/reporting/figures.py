"""The pictures of a report, each with what it shows in words."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from training.evaluation.reliability import ReliabilityBins
from training.reporting.blocks import Picture, score
from training.reporting.matplotlib_style import ACCENT, FILL, INK, OTHER, QUIET, drawable, name_width, picture
from training.reporting.reliability_diagram import draw_into

# Past so many labels the cells of a matrix have no numbers, and past so many more it is not drawn.
MOST_NUMBERED, MOST_DRAWN = 16, 60
_LENGTH_BINS = 40
_ON_FILL = "#101114"


def learning_curves(
    history: Sequence[dict[str, Any]], metric: str, best: int | None, name: str = "epoch"
) -> Picture:
    """Loss and metric of each epoch.

    Args:
        history: As in metrics.json.
        metric: Name of the score.
        best: The epoch whose weights were kept, counted from 0; -1: those before training; None:
            not known.
        name: What is counted: epochs, or of large data parts of them.
    """
    epochs = [each["epoch"] + 1 for each in history]
    found = [each[f"val_{metric}"] for each in history]

    def draw(figure: Any) -> None:
        losses, scores = figure.subplots(1, 2)
        losses.plot(
            epochs, [each["loss"] for each in history], color=OTHER, marker="o", ms=3, label="training"
        )
        losses.plot(
            epochs, [each["val_loss"] for each in history], color=ACCENT, marker="o", ms=3, label="validation"
        )
        losses.set(title="loss", xlabel=name)
        scores.plot(epochs, found, color=ACCENT, marker="o", ms=3, label="validation")
        scores.set(title=metric, xlabel=name)
        if best is not None:
            for axes in (losses, scores):
                axes.axvline(best + 1, color=QUIET, linewidth=0.8, linestyle=":", label="kept")
        for axes in (losses, scores):
            axes.grid(axis="y")
            axes.locator_params(axis="x", integer=True)
            axes.margins(x=0.04)
            axes.legend()

    kept = ""
    if best is not None:
        kept = f"; the weights {'before training' if best < 0 else f'of {name} {best + 1}'} were kept"
    count = f"one {name}" if len(epochs) == 1 else f"{len(epochs)} {name}s"
    alt = f"Loss and {metric} of {count}, {metric} from {score(found[0])} to {score(found[-1])}{kept}"
    return picture(alt, 8.6, 2.9, draw)


def confusion(matrix: np.ndarray, names: Sequence[str], expected: str, given: str) -> Picture:
    """A confusion matrix: the darker, the larger a cell's share of its row.

    Args:
        matrix: int [C, C], rows are the truth.
        names: C.
        expected: What rows are.
        given: What columns are.
    """
    matrix, shown = np.asarray(matrix), [drawable(name) for name in names]
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    left = max(map(name_width, shown)) + 0.4
    cell = min(0.55, max(0.16, 6.5 / len(shown)))
    side = cell * len(shown)
    width, height = left + side + 0.2, left + side + 0.15

    def draw(figure: Any) -> None:
        axes = figure.add_axes((left / width, left / height, side / width, side / height))
        colours = np.zeros((*shares.shape, 4))
        colours[..., :3] = [int(FILL[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        # See-through, so that it stands on a light page as well as on a dark one.
        colours[..., 3] = shares
        axes.imshow(colours, interpolation="nearest", aspect="equal")
        axes.set_xticks(range(len(shown)), shown, rotation=90)
        axes.set_yticks(range(len(shown)), shown)
        axes.tick_params(length=0)
        axes.set_xlabel(given)
        axes.set_ylabel(expected)
        # Labels at the edge of the picture, wherever names end.
        axes.yaxis.set_label_coords(-(left - 0.12) / side, 0.5)
        axes.xaxis.set_label_coords(0.5, -(left - 0.12) / side)
        if len(shown) <= MOST_NUMBERED:
            for row, column in zip(*np.nonzero(matrix), strict=True):
                # On a filled cell the same ink in both schemes.
                colour = _ON_FILL if shares[row, column] > 0.5 else INK
                axes.text(
                    column,
                    row,
                    f"{matrix[row, column]:,}",
                    ha="center",
                    va="center",
                    color=colour,
                    fontsize=8,
                )

    right = np.trace(matrix) / max(1, matrix.sum())
    alt = f"Confusion matrix of {len(shown)} labels: {right:.1%} of what was counted is on the diagonal"
    return picture(alt, width, height, draw, fitted=False)


def reliability_diagram(models: Sequence[ReliabilityBins]) -> Picture:
    """How often answers of each probability are right."""
    errors = ", ".join(f"{each.title} {score(each.error)}" for each in models)
    return picture(
        f"Reliability diagram; calibration error {errors}",
        4.1 * len(models) if len(models) > 1 else 4.6,
        4.6 if len(models) > 1 else 5.0,
        lambda figure: draw_into(figure, models),
    )


def lengths(found: dict[str, np.ndarray], longest: int, unit: str) -> Picture:
    """How many tokens texts have, by part of the data, in shares of the part.

    Args:
        found: Tokens of each text as the model reads it, by part.
        longest: Most tokens that it reads.
        unit: What is counted.
    """
    most = max(int(each.max(initial=1)) for each in found.values())
    step = max(1, -(-most // _LENGTH_BINS))
    edges = np.arange(0.5, most + step + 0.5, step)

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for (name, each), colour in zip(found.items(), (OTHER, ACCENT, QUIET), strict=False):
            counts = np.histogram(each, edges)[0] / max(1, len(each))
            axes.stairs(100 * counts, edges, color=colour, linewidth=1.4, label=name)
        if most >= longest:
            axes.axvline(longest, color=QUIET, linewidth=0.8, linestyle=":", label=f"longest, {longest}")
        axes.set(xlabel=f"tokens of {unit}", ylabel="% of the part")
        axes.grid(axis="y")
        axes.margins(x=0.02)
        axes.legend()

    medians = ", ".join(f"{name} {int(np.median(each))}" for name, each in found.items() if len(each))
    return picture(f"Histogram of lengths in tokens; medians: {medians}", 8.6, 2.7, draw)


def two_scores(wrong: np.ndarray, right: np.ndarray, threshold: float) -> Picture:
    """How the scores of pairs that match lie beside those of pairs that do not.

    Args:
        wrong: float [R], in [0, 1].
        right: float [S], in [0, 1].
        threshold: From which score a pair matches.
    """
    edges = np.linspace(0, 1, 41)

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for name, each, colour in (("label 0", wrong, OTHER), ("label 1", right, ACCENT)):
            shares = np.histogram(each, edges)[0] / max(1, len(each))
            axes.stairs(
                100 * shares, edges, color=colour, linewidth=1.4, label=f"{name}, {len(each):,} pairs"
            )
        axes.axvline(threshold, color=QUIET, linewidth=0.8, linestyle=":", label=f"threshold {threshold:.3f}")
        axes.set(xlabel="score", ylabel="% of the label's pairs", xlim=(0, 1))
        axes.grid(axis="y")
        axes.legend()

    means = " and ".join(f"{each.mean():.3f}" if len(each) else "none" for each in (wrong, right))
    return picture(f"Histogram of scores of pairs labelled 0 and 1; means {means}", 8.6, 2.7, draw)


def guesses(true: np.ndarray, found: np.ndarray) -> Picture:
    """Wanted numbers and guessed ones, a point a row; at most 2,000 of them.

    Args:
        true: float [R].
        found: float [R].
    """
    step = max(1, -(-len(true) // 2000))

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        axes.plot(true[::step], found[::step], ".", color=OTHER, ms=3, alpha=0.5)
        ends = [min(true.min(), found.min()), max(true.max(), found.max())]
        axes.plot(ends, ends, color=INK, linestyle="--", linewidth=0.8)
        axes.set(xlabel="expected", ylabel="guessed")
        axes.grid()

    return picture(f"Wanted and guessed numbers of {len(true):,} pairs", 4.6, 4.2, draw)
