"""Rounds in which all models run the same rows, one model after the other."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from export.benchmark.stopwatch import IDS, TEXTS
from training.io.json_subprocess import Crashed

LEAST_ROUNDS, TARGET_ROUNDS = 3, 10
MOST_CALLS = 16


class Job(NamedTuple):
    """What is measured: calls of `batch` rows from texts or from ids."""

    column: str
    batch: int


class Round(NamedTuple):
    """Times of one model in one round: seconds of each call, and processor seconds of all calls."""

    seconds: list[float]
    cpu_seconds: float


class Worker(Protocol):
    """A process that runs a model."""

    def request(self, **request: Any) -> dict[str, Any]:
        """Its reply to a request; raises `training.io.json_subprocess.Crashed`."""
        ...


@dataclass
class MeasuredModel:
    """A model and its measurements.

    Attributes:
        name: Its name in tables.
        kind: As in `export.benchmark.loaders`.
        worker: Its process.
        facts: What the process reported after loading the model.
        bytes: Size on disk; None for a model that was built in memory.
        rounds: Rounds by job and number.
        warm: Results of `Stopwatch.warm_up` by job.
        peak_bytes: Peak resident memory with one row at a time.
        failed: Why the measurement ended early; None: it did not.
    """

    name: str
    kind: str
    worker: Worker
    facts: dict[str, Any]
    bytes: int | None = None
    rounds: dict[Job, dict[int, Round]] = field(default_factory=dict)
    warm: dict[Job, dict[str, float]] = field(default_factory=dict)
    peak_bytes: int | None = None
    failed: str | None = None

    def supports(self, job: Job, has_ids: bool) -> bool:
        """Whether it can run a job; has_ids: the models have a common length of ids."""
        if self.failed is not None:
            return False
        takes = has_ids if job.column == IDS else self.facts["takes_texts"]
        return takes and (job.batch == 1 or self.facts["batched"])

    def request(self, **request: Any) -> dict[str, Any] | None:
        """The worker's reply; None if its process has ended."""
        if self.failed is not None:
            return None
        try:
            return self.worker.request(**request)
        except Crashed as error:
            self.failed = str(error)
            return None


def jobs(batches: Sequence[int]) -> list[Job]:
    """Jobs of each batch size, from texts and from ids."""
    return [Job(column, batch) for batch in batches for column in (TEXTS, IDS)]


def warm_up(models: Sequence[MeasuredModel], jobs: Sequence[Job], seconds: float, has_ids: bool) -> None:
    """Runs every job of every model before the measurement, for at most about these seconds each."""
    for model in models:
        for job in jobs:
            if model.supports(job, has_ids):
                found = model.request(do="warm_up", column=job.column, batch=job.batch, seconds=seconds)
                model.warm |= {} if found is None else {job: found}


def run_rounds(
    models: Sequence[MeasuredModel],
    jobs: Sequence[Job],
    seconds: float,
    rows: int,
    has_ids: bool,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Measures the models in turns; in a round of a job all make the same calls on the same rows.

    Args:
        models: The models, after `warm_up`.
        jobs: What to measure.
        seconds: Mean time for each model and job; there are at least three rounds.
        rows: Number of rows that the workers hold.
        has_ids: Whether the workers hold ids.
        clock: Returns the time in seconds.

    Returns:
        The number of rounds.
    """
    calls = {job: _calls(models, job, seconds) for job in jobs}
    turns = sum(model.supports(job, has_ids) for model in models for job in jobs)
    end, number = clock() + seconds * turns, 0
    while number < LEAST_ROUNDS or clock() < end:
        # The order changes, so that no model always follows the same one.
        shift = number % len(models)
        for job in jobs:
            first = number * calls[job] * job.batch % rows
            for model in (*models[shift:], *models[:shift]):
                if model.supports(job, has_ids):
                    found = model.request(
                        do="round", column=job.column, batch=job.batch, first=first, calls=calls[job]
                    )
                    if found is not None:
                        model.rounds.setdefault(job, {})[number] = Round(**found)
        number += 1
    return number


def _calls(models: Sequence[MeasuredModel], job: Job, seconds: float) -> int:
    """Calls a round, so that the slowest model still has several rounds."""
    slowest = max((model.warm[job]["least_seconds"] for model in models if job in model.warm), default=0)
    return max(1, min(MOST_CALLS, int(seconds / TARGET_ROUNDS / max(slowest, 1e-9))))
