"""The benchmark's figures for a reader."""

from collections.abc import Sequence
from typing import Any

from export.benchmark.stopwatch import IDS, TEXTS
from training.cli.text_table import format_table


def tables(reports: Sequence[dict[str, Any]], ids_length: int | None) -> list[str]:
    """Lines that show the reports of `figures.report`.

    Args:
        reports: The run's first.
        ids_length: Tokens of every row of ids; None: they were not timed.
    """
    titles = {TEXTS: "from texts, tokenizing included", IDS: f"from ids, {ids_length} tokens a text"}
    lines = []
    for name, title in titles.items():
        timed = [each for each in reports if each[name] is not None]
        if timed:
            lines += [
                *format_table([_speed_header(timed[0][name], title), *(_speed(each, name) for each in timed)])
            ]
            lines.append("")
    header = ("load and memory", "load ms", "first answer ms", "MB above imports", "MB peak", "MB on disk")
    return [*lines, *format_table([header, *(_weight(each) for each in reports if "memory" in each)])]


def _speed_header(column: dict[str, Any], title: str) -> tuple[str, ...]:
    ratios = [f"of {called}" for called in column["ratios"]]
    return (title, "p50 ms", "p95 ms", "p99 ms", *ratios, "cpu ms", *ratios, "best texts/s", "at batch")


def _speed(report: dict[str, Any], name: str) -> tuple[str, ...]:
    column = report[name]
    return (
        report["name"],
        *(_short(value) for value in column["latency_ms"].values()),
        *_shares(column["ratios"]),
        _short(column["cpu_ms"]),
        *_shares(column["cpu_ratios"]),
        f"{column['throughput']['texts_per_second']:,.0f}",
        str(column["throughput"]["batch_size"]),
    )


def _shares(ratios: dict[str, float | None]) -> list[str]:
    return ["" if value is None else f"{value:.2f}" for value in ratios.values()]


def _weight(report: dict[str, Any]) -> tuple[str, ...]:
    memory = report["memory"]
    first = next((report[name]["first_answer_ms"] for name in (TEXTS, IDS) if report[name]), None)
    size = report["bytes"]
    return (
        report["name"],
        _short(report["load_ms"]),
        "" if first is None else _short(first),
        *("" if memory[key] is None else f"{memory[key]:.0f}" for key in ("above_imports_mb", "peak_mb")),
        "" if size is None else f"{size / 1e6:.2f}",
    )


def _short(milliseconds: float) -> str:
    return f"{milliseconds:.0f}" if milliseconds >= 100 else f"{milliseconds:.3g}"
