"""A comparison as one picture: accuracy with intervals, and latency against length."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kmha.errors import InputError
from training.beside import written_beside

_INK, _QUIET = "#1f2933", "#7b8794"
_COLOURS = ("#3b7dd8", "#e07b39", "#2f9e62", "#b5479c", "#8a6d1d", "#c0392b", "#16808c", "#5b5fc7")
_MARKS = "osD^vPX*"


def check_matplotlib() -> None:
    """Raises InputError where there is nothing to draw with."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise InputError(
            "--out: wanted matplotlib to draw with, given none; pip install 'kmha[report]'"
        ) from None


def draw(path: Path, comparison: Mapping[str, Any]) -> None:
    """Draws a comparison; the file, a .png, stands there when it is whole.

    Args:
        path: Where to write; what stands there is replaced.
        comparison: What `training.comparing.job.compare` gives.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = comparison["candidates"]
    figure = Figure(figsize=(13.5, max(4.2, 1.6 + 0.42 * len(rows))), layout="constrained")
    FigureCanvasAgg(figure)
    accuracy, latency = figure.subplots(1, 2, width_ratios=(1, 1.1))
    style = {
        row["name"]: {"color": _COLOURS[place % len(_COLOURS)], "marker": _MARKS[place % len(_MARKS)]}
        for place, row in enumerate(rows)
    }
    _draw_accuracy(accuracy, comparison, style)
    _draw_latency(latency, comparison, style)
    with written_beside(path, overwrite=True, flag="--out") as beside:
        figure.savefig(beside, dpi=120, format="png")


def _draw_accuracy(axes: Any, comparison: Mapping[str, Any], style: Mapping[str, Any]) -> None:
    rows = sorted(comparison["candidates"], key=lambda row: row["accuracy"])
    for place, row in enumerate(rows):
        low, high = row["intervals"]["accuracy"]
        axes.plot([low, high], [place, place], color=style[row["name"]]["color"], linewidth=2, alpha=0.6)
        axes.plot([row["accuracy"]], [place], linestyle="none", markersize=8, **style[row["name"]])
        axes.annotate(
            f"{row['accuracy']:.4f}",
            (row["accuracy"], place),
            xytext=(0, 7),
            textcoords="offset points",
            ha="center",
            fontsize=8,
            color=_INK,
        )
    axes.set_yticks(range(len(rows)), [row["name"] for row in rows])
    axes.set(ylim=(-0.6, len(rows) - 0.2), xlabel="accuracy on the test rows, 95 % interval")
    axes.set_title(f"{comparison['rows']['train']:,} training, {comparison['rows']['test']:,} test rows")
    axes.grid(color=_QUIET, alpha=0.2)


def _draw_latency(axes: Any, comparison: Mapping[str, Any], style: Mapping[str, Any]) -> None:
    from matplotlib.ticker import LogLocator

    for row in comparison["candidates"]:
        points = sorted((int(length), ms) for length, ms in row["latency_ms"].items())
        if points:
            lengths, times = zip(*points, strict=True)
            axes.plot(lengths, times, label=row["name"], linewidth=1.6, markersize=5, **style[row["name"]])
    axes.set(xscale="log", yscale="log", xlabel="tokens", ylabel="milliseconds, one text")
    every = sorted({int(length) for row in comparison["candidates"] for length in row["latency_ms"]})
    axes.set_xticks(every, [str(length) for length in every])
    axes.minorticks_off()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_title("time to answer")
    axes.grid(color=_QUIET, alpha=0.2)
    if every:
        axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5))
