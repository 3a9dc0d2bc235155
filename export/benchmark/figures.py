"""Rounds to figures: percentiles, texts a second, ratios."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from export.benchmark.rounds import Job, Player, Round
from export.benchmark.stopwatch import IDS, TEXTS

PERCENTILES = (50, 95, 99)


def percentiles_ms(rounds: Mapping[int, Round]) -> dict[str, float]:
    """{"p50", "p95", "p99"} of the calls of all rounds, milliseconds."""
    seconds = [taken for played in rounds.values() for taken in played.seconds]
    values = np.percentile(seconds, PERCENTILES)
    return {f"p{percent}": float(value) * 1e3 for percent, value in zip(PERCENTILES, values, strict=True)}


def texts_per_second(rounds: Mapping[int, Round], batch: int) -> float:
    """Rows answered in a second, in the middle one of the rounds."""
    return statistics.median(batch * len(played.seconds) / sum(played.seconds) for played in rounds.values())


def cpu_seconds(played: Round) -> float:
    """Processor time of a call of a round."""
    return played.cpu_seconds / len(played.seconds)


def middle_seconds(played: Round) -> float:
    """Time of a round's middle call."""
    return statistics.median(played.seconds)


def ratio(
    rounds: Mapping[int, Round],
    reference: Mapping[int, Round],
    seconds: Callable[[Round], float] = middle_seconds,
) -> float | None:
    """Time over that of a reference.

    Each round is compared with the reference's same round, which answered the same rows next to it in time: what
    else the machine did then mostly cancels out. The middle one of these ratios counts.

    Args:
        rounds: By number.
        reference: By number.
        seconds: What is compared of a round.

    Returns:
        The ratio; None if there is no round that both played.
    """
    both = [number for number in rounds if number in reference and seconds(reference[number]) > 0]
    if not both:
        return None
    return statistics.median(seconds(rounds[number]) / seconds(reference[number]) for number in both)


def busyness(players: Sequence[Player]) -> float | None:
    """How many times their processor time the calls of single rows took, all together; None without any.

    About 1 on a machine with nothing else to do, for one thread; less with more.
    """
    alone = [
        played
        for player in players
        for job, rounds in player.rounds.items()
        if job.batch == 1
        for played in rounds.values()
    ]
    cpu = sum(played.cpu_seconds for played in alone)
    return sum(sum(played.seconds) for played in alone) / cpu if cpu else None


def report(player: Player, references: Mapping[str, Player]) -> dict[str, Any]:
    """Everything about one player, as JSON values.

    Args:
        player: The player.
        references: By what a ratio to each is called.

    Returns:
        "name", "kind", "bytes", "import_seconds", "load_ms", "memory" and for "texts" and "ids" what `column`
        gives (None: nothing measured); "failed" if it did not play to the end, and then only the rest that is known.
    """
    failed = {} if player.failed is None else {"failed": player.failed}
    about = {"name": player.name, "kind": player.kind, "bytes": player.bytes, **failed}
    if not player.facts:
        return {**about, TEXTS: None, IDS: None}
    imported, peak = player.facts["import_bytes"], player.peak_bytes
    return {
        **about,
        "import_seconds": player.facts["import_seconds"],
        "load_ms": player.facts["load_seconds"] * 1e3,
        "memory": {
            "imports_mb": imported / 1e6,
            "peak_mb": None if peak is None else peak / 1e6,
            "above_imports_mb": None if peak is None else (peak - imported) / 1e6,
        },
        **{name: column(player, name, references) for name in (TEXTS, IDS)},
    }


def column(player: Player, name: str, references: Mapping[str, Player]) -> dict[str, Any] | None:
    """The figures of one kind of input.

    Returns:
        "latency_ms" of a row alone, its "cpu_ms", "calls", "first_answer_ms" (in no other figure), "ratios" and
        "cpu_ratios" of its time, and "throughput": the best "texts_per_second", at which "batch_size", and all sizes.
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
    others = {called: reference.rounds.get(alone, {}) for called, reference in references.items()}
    return {
        "latency_ms": percentiles_ms(rounds),
        "cpu_ms": statistics.median(map(cpu_seconds, rounds.values())) * 1e3,
        "calls": sum(len(played.seconds) for played in rounds.values()),
        "first_answer_ms": player.warm[alone]["first_seconds"] * 1e3,
        "ratios": {called: ratio(rounds, other) for called, other in others.items()},
        "cpu_ratios": {called: ratio(rounds, other, cpu_seconds) for called, other in others.items()},
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
