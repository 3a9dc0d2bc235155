"""Rounds to figures: percentiles, texts a second, ratios."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from export.timing.rounds import Job, Player, Round
from export.timing.stopwatch import IDS, TEXTS

PERCENTILES = (50, 95, 99)


def percentiles_ms(rounds: Mapping[int, Round]) -> dict[str, float]:
    """{"p50", "p95", "p99"} of the calls of all rounds, milliseconds."""
    seconds = [taken for played in rounds.values() for taken in played.seconds]
    values = np.percentile(seconds, PERCENTILES)
    return {f"p{percent}": float(value) * 1e3 for percent, value in zip(PERCENTILES, values, strict=True)}


def texts_per_second(rounds: Mapping[int, Round], batch: int) -> float:
    """Rows answered in a second, in the middle one of the rounds."""
    return statistics.median(batch * len(played.seconds) / sum(played.seconds) for played in rounds.values())


def ratio(rounds: Mapping[int, Round], reference: Mapping[int, Round]) -> float | None:
    """Time a call over that of a reference.

    Each round's middle call is compared with the reference's of the same round, which answered the same rows next
    to it in time: what else the machine did then cancels out. The middle one of these ratios counts.

    Returns:
        The ratio; None if there is no round that both played.
    """
    both = rounds.keys() & reference.keys()
    if not both:
        return None
    return statistics.median(
        statistics.median(rounds[number].seconds) / statistics.median(reference[number].seconds)
        for number in both
    )


def report(player: Player, references: Mapping[str, Player]) -> dict[str, Any]:
    """Everything about one player, as JSON values.

    Args:
        player: The player.
        references: By what a ratio to each is called.

    Returns:
        "name", "kind", "bytes", "import_seconds", "load_ms", "memory" and for "texts" and "ids" what `column`
        gives (None: it takes none); "failed" if it did not play to the end.
    """
    imported, peak = player.facts["import_bytes"], player.peak_bytes
    failed = {} if player.failed is None else {"failed": player.failed}
    return {
        "name": player.name,
        "kind": player.kind,
        "bytes": player.bytes,
        "import_seconds": player.facts["import_seconds"],
        "load_ms": player.facts["load_seconds"] * 1e3,
        "memory": {
            "imports_mb": imported / 1e6,
            "peak_mb": None if peak is None else peak / 1e6,
            "above_imports_mb": None if peak is None else (peak - imported) / 1e6,
        },
        **{name: column(player, name, references) for name in (TEXTS, IDS)},
        **failed,
    }


def column(player: Player, name: str, references: Mapping[str, Player]) -> dict[str, Any] | None:
    """The figures of one kind of input.

    Returns:
        "latency_ms" of a row alone, its "cpu_ms", "calls", "first_answer_ms" (untimed by the rest), "ratios" of
        its time, and "throughput": the best "texts_per_second", at which "batch_size", and all sizes.
    """
    alone = Job(name, 1)
    rounds = player.rounds.get(alone)
    if not rounds:
        return None
    sizes = {
        job.batch: texts_per_second(played, job.batch)
        for job, played in sorted(player.rounds.items())
        if job.column == name
    }
    best = max(sizes, key=lambda size: sizes[size])
    cpu = statistics.median(played.cpu_seconds / len(played.seconds) for played in rounds.values())
    return {
        "latency_ms": percentiles_ms(rounds),
        "cpu_ms": cpu * 1e3,
        "calls": sum(len(played.seconds) for played in rounds.values()),
        "first_answer_ms": player.warm[alone]["first_seconds"] * 1e3,
        "ratios": {
            called: ratio(rounds, reference.rounds.get(alone, {})) for called, reference in references.items()
        },
        "throughput": {
            "texts_per_second": sizes[best],
            "batch_size": best,
            "by_batch_size": {str(size): speed for size, speed in sizes.items()},
        },
    }


def fastest(reports: Sequence[dict[str, Any]], name: str) -> str | None:
    """Name of the one whose middle call takes least; None if nobody has such a column."""
    timed = [each for each in reports if each[name] is not None]
    return min(timed, key=lambda each: each[name]["latency_ms"]["p50"])["name"] if timed else None
