"""Times a loaded model on given rows."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from export.benchmark.timed import Timed

TEXTS, IDS = "texts", "ids"
LEAST_WARM_CALLS = 3
# Calls before each round's timed ones: other processes have just had the caches to themselves.
CALLS_TO_WAKE = 2


class Stopwatch:
    """Calls a model on the rows that it was given, in their order, over and over.

    Args:
        timed: The model.
    """

    def __init__(self, timed: Timed):
        self._timed = timed
        self._texts: Sequence[bytes] = []
        self._ids = self._mask = np.zeros((0, 0), np.int32)

    def give(self, texts: Sequence[bytes], token_ids: np.ndarray | None, mask: np.ndarray | None) -> None:
        """Takes the rows: texts, and ids and mask int32 [rows, T] of the same texts (None: ids are not timed)."""
        self._texts = texts
        if token_ids is not None and mask is not None:
            self._ids, self._mask = token_ids, mask

    def warm(self, column: str, batch: int, seconds: float) -> dict[str, float]:
        """Calls before anything is timed: all rows once, or as many as the seconds allow, at least three calls.

        Returns:
            Seconds of the first call, and of the shortest other: what else the machine does does not shorten any.
        """
        taken: list[float] = []
        while len(taken) < LEAST_WARM_CALLS or (
            len(taken) * batch < len(self._texts) and sum(taken) < seconds
        ):
            taken.append(_seconds(self._call(column, batch, len(taken) * batch)))
        return {"first_seconds": taken[0], "least_seconds": min(taken[1:])}

    def round(self, column: str, batch: int, first: int, calls: int) -> dict[str, Any]:
        """Times some calls.

        Args:
            column: "texts" or "ids", what the model is given.
            batch: Rows a call.
            first: Row of the first call; the later calls take the rows that follow, the first after the last.
            calls: How many.

        Returns:
            "seconds" of each call and "cpu_seconds", the processor time of them all in all threads.
        """
        prepared = [self._call(column, batch, first + number * batch) for number in range(calls)]
        for number in range(CALLS_TO_WAKE):
            prepared[number % calls]()
        began = time.process_time()
        seconds = [_seconds(call) for call in prepared]
        return {"seconds": seconds, "cpu_seconds": time.process_time() - began}

    def _call(self, column: str, batch: int, first: int) -> Callable[[], Any]:
        rows = [(first + offset) % len(self._texts) for offset in range(batch)]
        if column == IDS:
            ids, mask = self._ids[rows], self._mask[rows]
            return lambda: self._timed.from_ids(ids, mask)
        answer, texts = self._timed.from_texts, [self._texts[row] for row in rows]
        assert answer is not None
        return lambda: answer(texts)


def _seconds(call: Callable[[], Any]) -> float:
    began = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - began) / 1e9
