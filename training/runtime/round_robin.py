"""Timing candidates in turns, so that other load on the machine affects all of them alike."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

Candidate = TypeVar("Candidate")
Call = Callable[[], Any]


def round_order(candidates: Sequence[Candidate], number: int) -> list[Candidate]:
    """The order of candidates in a round: each round starts with the next one."""
    shift = number % len(candidates) if candidates else 0
    return [*candidates[shift:], *candidates[:shift]]


def time_in_turns(
    calls: Mapping[str, Sequence[Call | None]],
    rounds: int,
    warm_ups: int = 0,
    repeats: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[list[float]]]:
    """Times the calls of candidates; in each round all candidates do the same tasks one after the other.

    Args:
        calls: For each candidate a call for each task; None if it cannot do the task. All have the same tasks.
        rounds: Number of rounds.
        warm_ups: Untimed calls before each turn.
        repeats: Timed calls in each turn; the fastest counts.
        clock: Returns seconds.

    Returns:
        Seconds by candidate: for each task a list of the rounds, empty if the candidate cannot do it.
    """
    seconds: dict[str, list[list[float]]] = {name: [[] for _ in each] for name, each in calls.items()}
    names = list(calls)
    for number in range(rounds):
        for task in range(len(calls[names[0]]) if names else 0):
            for name in round_order(names, number):
                call = calls[name][task]
                if call is None:
                    continue
                for _ in range(warm_ups):
                    call()
                seconds[name][task].append(min(_time(call, clock) for _ in range(repeats)))
    return seconds


def _time(call: Call, clock: Callable[[], float]) -> float:
    start = clock()
    call()
    return clock() - start
