"""Rounds in which all models answer the same rows, one model after the other."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from export.benchmark.stopwatch import IDS, TEXTS
from training.io.json_subprocess import Crashed

LEAST_ROUNDS, WANTED_ROUNDS = 3, 10
MOST_CALLS = 16


class Job(NamedTuple):
    """What is timed: `batch` rows a call, given as texts or as ids."""

    column: str
    batch: int


class Round(NamedTuple):
    """What one model took in one round: seconds of each call, and of the processor for all of them."""

    seconds: list[float]
    cpu_seconds: float


class Worker(Protocol):
    """A model's process."""

    def ask(self, **request: Any) -> dict[str, Any]:
        """Its answer; raises `export.predictors.isolated.Crashed`."""
        ...


@dataclass
class Player:
    """A model and what was measured of it.

    Attributes:
        name: For the reader.
        kind: As in `export.benchmark.timed`.
        worker: Its process.
        facts: What the worker said when the model was loaded.
        bytes: Size on disk; None for one that stands nowhere.
        rounds: By job and number of the round.
        warm: Of each job, what `Stopwatch.warm` found.
        peak_bytes: Most resident memory while it answered one row at a time.
        failed: Why it did not play to the end; None: it did.
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

    def plays(self, job: Job, has_ids: bool) -> bool:
        """Whether it can do a job; has_ids: there are ids of a length that all take."""
        if self.failed is not None:
            return False
        takes = has_ids if job.column == IDS else self.facts["takes_texts"]
        return takes and (job.batch == 1 or self.facts["batched"])

    def ask(self, **request: Any) -> dict[str, Any] | None:
        """The worker's answer; None once it has died."""
        if self.failed is not None:
            return None
        try:
            return self.worker.ask(**request)
        except Crashed as error:
            self.failed = str(error)
            return None


def jobs(batches: Sequence[int]) -> list[Job]:
    """Each batch size from texts and from ids."""
    return [Job(column, batch) for batch in batches for column in (TEXTS, IDS)]


def warm(players: Sequence[Player], expected: Sequence[Job], seconds: float, has_ids: bool) -> None:
    """Lets every player do each of its jobs untimed, for at most about these seconds each."""
    for player in players:
        for job in expected:
            if player.plays(job, has_ids):
                found = player.ask(do="warm", column=job.column, batch=job.batch, seconds=seconds)
                player.warm |= {} if found is None else {job: found}


def play(
    players: Sequence[Player],
    expected: Sequence[Job],
    seconds: float,
    rows: int,
    has_ids: bool,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Measures the players in turns; in a round of a job all do the same calls on the same rows.

    Args:
        players: Warm ones.
        expected: Jobs.
        seconds: Of measuring for each player and job, on average; at least three rounds are played.
        rows: Number of rows that the workers were given.
        has_ids: Whether ids were among them.
        clock: Tells the time in seconds.

    Returns:
        The number of rounds.
    """
    calls = {job: _calls(players, job, seconds) for job in expected}
    turns = sum(player.plays(job, has_ids) for player in players for job in expected)
    end, number = clock() + seconds * turns, 0
    while number < LEAST_ROUNDS or clock() < end:
        # Nobody always follows the same other one.
        shift = number % len(players)
        for job in expected:
            first = number * calls[job] * job.batch % rows
            for player in (*players[shift:], *players[:shift]):
                if player.plays(job, has_ids):
                    found = player.ask(
                        do="round", column=job.column, batch=job.batch, first=first, calls=calls[job]
                    )
                    if found is not None:
                        player.rounds.setdefault(job, {})[number] = Round(**found)
        number += 1
    return number


def _calls(players: Sequence[Player], job: Job, seconds: float) -> int:
    """Calls a round: as many as leave the slowest player several rounds."""
    slowest = max((player.warm[job]["least_seconds"] for player in players if job in player.warm), default=0)
    return max(1, min(MOST_CALLS, int(seconds / WANTED_ROUNDS / max(slowest, 1e-9))))
