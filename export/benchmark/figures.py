"""Figures of a benchmark from its rounds: percentiles, texts a second, ratios, and tables of them."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from export.benchmark.measure import Job, MeasuredModel, Round
from export.benchmark.worker import IDS, TEXTS
from training.cli.parser import format_table

PERCENTILES = (50, 95, 99)


def percentiles_ms(rounds: Mapping[int, Round]) -> dict[str, float]:
    """{"p50", "p95", "p99"} of the calls of all rounds, in milliseconds."""
    seconds = [taken for each in rounds.values() for taken in each.seconds]
    values = np.percentile(seconds, PERCENTILES)
    return {f"p{percent}": float(value) * 1e3 for percent, value in zip(PERCENTILES, values, strict=True)}


def texts_per_second(rounds: Mapping[int, Round], batch: int) -> float:
    """Texts a second, the median of the rounds."""
    return statistics.median(batch * len(each.seconds) / sum(each.seconds) for each in rounds.values())


def cpu_seconds(measured: Round) -> float:
    """Mean processor time of a round's calls."""
    return measured.cpu_seconds / len(measured.seconds)


def median_seconds(measured: Round) -> float:
    """Median time of a round's calls."""
    return statistics.median(measured.seconds)


def ratio(
    rounds: Mapping[int, Round],
    reference: Mapping[int, Round],
    seconds: Callable[[Round], float] = median_seconds,
) -> float | None:
    """The median ratio of times to those of a reference; None if they have no common round.

    Each round is compared with the reference's same round, which ran the same rows shortly before or after: the
    effect of other load on the machine mostly cancels out.
    """
    both = [number for number in rounds if number in reference and seconds(reference[number]) > 0]
    if not both:
        return None
    return statistics.median(seconds(rounds[number]) / seconds(reference[number]) for number in both)


def busyness(models: Sequence[MeasuredModel]) -> float | None:
    """The ratio of time to processor time of all calls with a single row; None without calls.

    About 1 on an idle machine with one thread; less with more threads.
    """
    single = [
        each
        for model in models
        for job, rounds in model.rounds.items()
        if job.batch == 1
        for each in rounds.values()
    ]
    cpu = sum(each.cpu_seconds for each in single)
    return sum(sum(each.seconds) for each in single) / cpu if cpu else None


def report(model: MeasuredModel, references: Mapping[str, MeasuredModel]) -> dict[str, Any]:
    """The results of one model, as JSON values; `references` are models by the names of their ratios.

    These are "name", "kind", "bytes", "import_seconds", "load_ms", "memory" and for "texts" and "ids" what `column`
    returns (None: not measured); "failed" with the reason, and then only the values that are known.
    """
    failed = {} if model.failed is None else {"failed": model.failed}
    about = {"name": model.name, "kind": model.kind, "bytes": model.bytes, **failed}
    if not model.facts:
        return {**about, TEXTS: None, IDS: None}
    imported, peak = model.facts["import_bytes"], model.peak_bytes
    return {
        **about,
        "import_seconds": model.facts["import_seconds"],
        "load_ms": model.facts["load_seconds"] * 1e3,
        "memory": {
            "imports_mb": imported / 1e6,
            "peak_mb": None if peak is None else peak / 1e6,
            "above_imports_mb": None if peak is None else (peak - imported) / 1e6,
        },
        **{name: column(model, name, references) for name in (TEXTS, IDS)},
    }


def column(model: MeasuredModel, name: str, references: Mapping[str, MeasuredModel]) -> dict[str, Any] | None:
    """The figures of one kind of input; None: not measured.

    These are "latency_ms" of a single row, its "cpu_ms", "calls", "first_answer_ms" (of the first call, in no other
    figure), "ratios" and "cpu_ratios" of its time, and "throughput": the best "texts_per_second", its "batch_size",
    and the values of all sizes.
    """
    single = Job(name, 1)
    rounds = model.rounds.get(single)
    if not rounds:
        return None
    sizes = {
        job.batch: texts_per_second(rounds_of_size, job.batch)
        for job, rounds_of_size in sorted(model.rounds.items())
        if job.column == name
    }
    best = max(sizes, key=lambda size: sizes[size])
    others = {called: reference.rounds.get(single, {}) for called, reference in references.items()}
    return {
        "latency_ms": percentiles_ms(rounds),
        "cpu_ms": statistics.median(map(cpu_seconds, rounds.values())) * 1e3,
        "calls": sum(len(each.seconds) for each in rounds.values()),
        "first_answer_ms": model.warm[single]["first_seconds"] * 1e3,
        "ratios": {called: ratio(rounds, other) for called, other in others.items()},
        "cpu_ratios": {called: ratio(rounds, other, cpu_seconds) for called, other in others.items()},
        "throughput": {
            "texts_per_second": sizes[best],
            "batch_size": best,
            "by_batch_size": {str(size): speed for size, speed in sizes.items()},
        },
    }


def fastest(reports: Sequence[dict[str, Any]], name: str) -> str | None:
    """Name of the model with the lowest median latency; None if none was measured."""
    timed = [each for each in reports if each[name] is not None]
    return min(timed, key=lambda each: each[name]["latency_ms"]["p50"])["name"] if timed else None


def tables(reports: Sequence[dict[str, Any]], ids_length: int | None) -> list[str]:
    """The lines of the tables of reports, the run's first, from ids of so many tokens a row (None: not measured)."""
    titles = {TEXTS: "from texts, tokenizing included", IDS: f"from ids, {ids_length} tokens a text"}
    lines = []
    for name, title in titles.items():
        timed = [each for each in reports if each[name] is not None]
        if timed:
            ratios = [f"of {called}" for called in timed[0][name]["ratios"]]
            speeds = ("p50 ms", "p95 ms", "p99 ms", *ratios, "cpu ms", *ratios, "best texts/s", "at batch")
            rows = [(title, *speeds), *(_speed(each, name) for each in timed)]
            lines += [*format_table(rows), ""]
    header = ("load and memory", "load ms", "first answer ms", "MB above imports", "MB peak", "MB on disk")
    return [*lines, *format_table([header, *(_weight(each) for each in reports if "memory" in each)])]


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
