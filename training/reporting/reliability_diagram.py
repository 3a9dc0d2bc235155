"""Draws reliability diagrams: observed accuracy by predicted probability."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kmha.errors import InputError
from training.evaluation.reliability import ReliabilityBins
from training.io.atomic_write import atomic_write
from training.metrics.classification import CALIBRATION_BINS
from training.reporting.matplotlib_style import ACCENT, FILL, INK, QUIET

# What matplotlib can write without any other program.
SUFFIXES = (".png", ".svg", ".pdf")


def check_picture(path: Path, flag: str = "--out") -> None:
    """Raises InputError where no picture can be written: a wrong ending, no folder, no matplotlib.

    Args:
        path: Where it is to be.
        flag: What named the place.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(
            f"{flag} {path}: expected a file ending in {', '.join(SUFFIXES)}, got {path.suffix or 'none'}"
        )
    if not path.parent.is_dir():
        raise InputError(f"{flag} {path}: expected a folder that exists, got {path.parent}")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise InputError(
            f"{flag}: expected matplotlib to draw with, got none; pip install 'kmha[report]'"
        ) from None


def draw(path: Path, models: Sequence[ReliabilityBins]) -> None:
    """Draws models side by side; the file stands there when it is whole.

    Args:
        path: Where to write; its ending says what.
        models: Of the same rows.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.8 * len(models), 6.4), layout="constrained")
    FigureCanvasAgg(figure)
    draw_into(figure, models)
    with atomic_write(path, overwrite=True, flag="--out") as beside:
        figure.savefig(beside, dpi=120, format=path.suffix[1:].lower())


def draw_into(figure: Any, models: Sequence[ReliabilityBins]) -> None:
    """Draws models side by side into a matplotlib figure; see `draw`."""
    axes = figure.subplots(2, len(models), squeeze=False, height_ratios=(4, 1), sharex=True)
    for column, model in enumerate(models):
        _draw_bins(axes[0, column], model)
        _draw_rows(axes[1, column], model)
    axes[0, 0].set_ylabel("share of right answers")
    axes[1, 0].set_ylabel("answers")
    handles = axes[0, 0].get_legend_handles_labels()
    columns = 3 if len(models) > 1 else 1
    figure.legend(*handles, loc="outside lower center", ncols=columns, frameon=False)


def _draw_bins(axes: Any, model: ReliabilityBins) -> None:
    edges = np.arange(CALIBRATION_BINS) / CALIBRATION_BINS
    width, filled = 1 / CALIBRATION_BINS, model.rows > 0
    right, sure = model.accuracy[filled], model.confidence[filled]
    places = edges[filled] + width / 2
    axes.bar(places, right, width * 0.9, color=FILL, label="right answers")
    axes.bar(
        places,
        np.abs(sure - right),
        width * 0.9,
        bottom=np.minimum(sure, right),
        color="none",
        edgecolor=ACCENT,
        hatch="////",
        linewidth=0.8,
        label="distance to the mean probability",
    )
    axes.plot([0, 1], [0, 1], color=INK, linestyle="--", linewidth=1, label="what a probability promises")
    error = "no rows" if model.error is None else f"calibration error {model.error:.4f}"
    axes.set_title(f"{model.title}\n{error}")
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.grid(color=QUIET, alpha=0.2)


def _draw_rows(axes: Any, model: ReliabilityBins) -> None:
    edges = np.arange(CALIBRATION_BINS) / CALIBRATION_BINS
    axes.bar(edges, model.rows, 0.9 / CALIBRATION_BINS, align="edge", color=QUIET)
    axes.set(xlim=(0, 1), xlabel="probability of the answer")
