"""Times a loaded model on rows."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from export.benchmark.loaders import LoadedModel

TEXTS, IDS = "texts", "ids"
LEAST_WARM_CALLS = 3
# Untimed calls before each round: other processes have just filled the caches.
CALLS_TO_WAKE = 2


class Stopwatch:
    """Calls a model on its rows, in their order, again and again.

    Args:
        model: The model.
    """

    def __init__(self, model: LoadedModel):
        self._model = model
        self._texts: Sequence[bytes] = []
        self._ids = self._mask = np.zeros((0, 0), np.int32)

    def set_rows(self, texts: Sequence[bytes], token_ids: np.ndarray | None, mask: np.ndarray | None) -> None:
        """Sets the rows: texts, and their ids and mask int32 [rows, T] (None: ids are not measured)."""
        self._texts = texts
        if token_ids is not None and mask is not None:
            self._ids, self._mask = token_ids, mask

    def warm_up(self, column: str, batch: int, seconds: float) -> dict[str, float]:
        """Untimed calls: all rows once, or as many as the seconds allow, at least three calls.

        Returns:
            Seconds of the first call, and of the shortest other, which other load affects least.
        """
        taken: list[float] = []
        while len(taken) < LEAST_WARM_CALLS or (
            len(taken) * batch < len(self._texts) and sum(taken) < seconds
        ):
            taken.append(_seconds(self._call(column, batch, len(taken) * batch)))
        return {"first_seconds": taken[0], "least_seconds": min(taken[1:])}

    def round(self, column: str, batch: int, first: int, calls: int) -> dict[str, Any]:
        """Times calls.

        Args:
            column: "texts" or "ids", the kind of input.
            batch: Rows a call.
            first: First row of the first call; later calls use the following rows, the first row after the last.
            calls: Number of calls.

        Returns:
            "seconds" of each call and "cpu_seconds", the processor time of all calls in all threads.
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
            return lambda: self._model.from_ids(ids, mask)
        predict, texts = self._model.from_texts, [self._texts[row] for row in rows]
        assert predict is not None
        return lambda: predict(texts)


def _seconds(call: Callable[[], Any]) -> float:
    began = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - began) / 1e9
