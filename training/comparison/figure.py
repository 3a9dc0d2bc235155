"""Presents a comparison: table, notes, and a figure of accuracy and latency."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from training.metrics.paired import format_difference
from training.reporting.matplotlib_style import write_figure

_INK, _QUIET = "#1f2933", "#7b8794"
_COLORS = ("#3b7dd8", "#e07b39", "#2f9e62", "#b5479c", "#8a6d1d", "#c0392b", "#16808c", "#5b5fc7")
_MARKERS = "osD^vPX*"


def write_comparison_figure(path: Path, comparison: Mapping[str, Any]) -> None:
    """Draws accuracy with intervals, and latency by length, into a file; an existing one is replaced."""
    rows = comparison["candidates"]
    style = {
        row["name"]: {"color": _COLORS[place % len(_COLORS)], "marker": _MARKERS[place % len(_MARKERS)]}
        for place, row in enumerate(rows)
    }

    def draw(figure: Any) -> None:
        accuracy, latency = figure.subplots(1, 2, width_ratios=(1, 1.1))
        _draw_accuracy(accuracy, comparison, style)
        _draw_latency(latency, comparison, style)

    write_figure(path, (13.5, max(4.2, 1.6 + 0.42 * len(rows))), draw)


def _draw_accuracy(axes: Any, comparison: Mapping[str, Any], style: Mapping[str, Any]) -> None:
    rows = sorted(comparison["candidates"], key=lambda row: row["accuracy"])
    for place, row in enumerate(rows):
        low, high = row["intervals"]["accuracy"]
        axes.plot([low, high], [place, place], color=style[row["name"]]["color"], linewidth=2, alpha=0.6)
        axes.plot([row["accuracy"]], [place], linestyle="none", markersize=8, **style[row["name"]])
        text = {"xytext": (0, 7), "textcoords": "offset points", "ha": "center", "fontsize": 8}
        axes.annotate(f"{row['accuracy']:.4f}", (row["accuracy"], place), color=_INK, **text)
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
    axes.set_title("latency")
    axes.grid(color=_QUIET, alpha=0.2)
    if every:
        axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5))


_COLUMNS = ["candidate", "weights", "rate", "validation", "accuracy", "interval"]
_COLUMNS += ["difference", "s/epoch", "cpu s"]


def comparison_cells(comparison: Mapping[str, Any]) -> list[list[str]]:
    """Table cells: a header, and a row for each candidate."""
    lengths = sorted({int(length) for row in comparison["candidates"] for length in row["latency_ms"]})
    rows = [[*_COLUMNS, *(f"ms at {length}" for length in lengths)]]
    for row in comparison["candidates"]:
        low, high = row["intervals"]["accuracy"]
        times = (row["latency_ms"].get(str(length)) for length in lengths)
        rows.append(
            [
                row["name"],
                f"{row['weights']:,}",
                f"{row['rate']:g}" if "rate" in row else "",
                f"{row['validation']:.4f}" if "validation" in row else "",
                f"{row['accuracy']:.4f}",
                f"{low:.4f}–{high:.4f}",
                _difference(row.get("difference")),
                _seconds(row, ""),
                _seconds(row, "cpu_"),
                *("" if time is None else f"{time:.2f}" for time in times),
            ]
        )
    return rows


def _difference(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return ""
    return f"{format_difference({**found, 'difference': found['value']})}, {found['verdict']}"


def _seconds(row: Mapping[str, Any], kind: str) -> str:
    if f"{kind}seconds_per_epoch" in row:
        return f"{row[f'{kind}seconds_per_epoch']:.1f}"
    return f"{row[f'{kind}seconds_in_all']:.1f} in total" if f"{kind}seconds_in_all" in row else ""


def notes(comparison: Mapping[str, Any]) -> list[str]:
    """Notes below the table."""
    reference = comparison["reference"]
    level = comparison["weights"]
    lines = [
        f"difference: accuracy minus that of {reference} on the same rows, with its 95 % interval in the paired"
        " bootstrap; a model wins if the interval excludes 0 and McNemar's test has p < .05",
        "s/epoch: time of the training steps of the median epoch; cpu s: its processor time; ms: latency of one text,"
        " median of several rounds in turns",
    ]
    if level["target"] is not None:
        lines.append(
            f"weights: trained networks are within {level['largest_distance']:.2%} of {level['target']:,};"
            " the linear model and runs keep their own"
        )
    lines += [f"{row['name']}: {row['description']}" for row in comparison["candidates"]]
    return lines


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """Formats cells as a Markdown table."""
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |\n" for row in lines)
