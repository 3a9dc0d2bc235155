"""python -m export.benchmark.worker KIND PATH THREADS SIZES

Loads one model and measures it on request. `export.benchmark` starts this process and sends one JSON object a line on
stdin; each reply is one line on stdout, the first when the model is loaded.
"""  # noqa: D415

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from export.benchmark.loaders import LoadedModel, loader
from kmha.errors import InputError
from training.cli.parser import WRONG_INPUT

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
TEXTS, IDS = "texts", "ids"
LEAST_WARM_CALLS = 3
# Untimed calls before each round: other processes have just filled the caches.
CALLS_TO_WAKE = 2


def resident_bytes() -> int:
    """Resident memory now; where the system does not report it, the peak so far."""
    return _from_status("VmRSS") or peak_bytes()


def peak_bytes() -> int:
    """Peak resident memory since the start of the process or the last `reset_peak`."""
    # On Linux getrusage also counts the memory of the parent when it started this process.
    found = _from_status("VmHWM")
    if found is not None:
        return found
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def reset_peak() -> None:
    """Resets the peak to the current memory, where the system allows it."""
    try:
        _RESET.write_text("5")
    except OSError:
        return


def _from_status(name: str) -> int | None:
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    kilobytes = [int(line.split()[1]) for line in lines if line.startswith(f"{name}:")]
    return kilobytes[0] * 1024 if kilobytes else None


class Stopwatch:
    """Calls a model on its rows, in their order, again and again."""

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

        Returns the seconds of the first call, and of the shortest other, which other load affects least.
        """
        taken: list[float] = []
        while len(taken) < LEAST_WARM_CALLS or (
            len(taken) * batch < len(self._texts) and sum(taken) < seconds
        ):
            taken.append(_seconds(self._call(column, batch, len(taken) * batch)))
        return {"first_seconds": taken[0], "least_seconds": min(taken[1:])}

    def round(self, column: str, batch: int, first: int, calls: int) -> dict[str, Any]:
        """Times calls of a batch of rows from "texts" or "ids".

        Each call uses the rows after those of the one before, and the first row after the last. Returns "seconds" of
        each call and "cpu_seconds", the processor time of all calls in all threads.
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


def main(argv: Sequence[str] | None = None) -> int:
    """Handles requests until stdin ends; returns the exit status."""
    kind, path, threads, sizes = sys.argv[1:] if argv is None else argv
    # Runtimes print to stdout; this must not mix with the replies.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        model, facts = _load(kind, path, int(threads), json.loads(sizes))
    except InputError as error:
        print(json.dumps({"error": str(error)}), file=replies, flush=True)
        return WRONG_INPUT
    print(json.dumps(facts), file=replies, flush=True)
    stopwatch = Stopwatch(model)
    for line in sys.stdin:
        print(json.dumps(_reply(model, stopwatch, json.loads(line))), file=replies, flush=True)
    return 0


def _load(kind: str, path: str, threads: int, sizes: dict[str, Any]) -> tuple[LoadedModel, dict[str, Any]]:
    began = time.perf_counter()
    load = loader(kind, path)
    imported, import_bytes = time.perf_counter(), resident_bytes()
    reset_peak()
    model = load(path, threads, sizes)
    return model, {
        "import_seconds": imported - began,
        "load_seconds": time.perf_counter() - imported,
        "import_bytes": import_bytes,
        "takes_texts": model.from_texts is not None,
        "lengths": model.lengths,
        "batched": model.batched,
        "run": model.run,
    }


def _reply(model: LoadedModel, stopwatch: Stopwatch, request: dict[str, Any]) -> dict[str, Any]:
    do = request.pop("do")
    if do == "encode":
        assert model.encode is not None
        token_ids, mask = model.encode(_bytes(request["texts"]), request["length"])
        return {"token_ids": token_ids.tolist(), "padding_mask": mask.tolist()}
    if do == "set_rows":
        names = ("token_ids", "padding_mask")
        ids, mask = (None if request[name] is None else np.array(request[name], np.int32) for name in names)
        stopwatch.set_rows(_bytes(request["texts"]), ids, mask)
        return {}
    if do == "memory":
        return {"peak_bytes": peak_bytes()}
    return {"warm_up": stopwatch.warm_up, "round": stopwatch.round}[do](**request)


def _bytes(texts: Sequence[str]) -> list[bytes]:
    return [text.encode("utf-8", "replace") for text in texts]


if __name__ == "__main__":
    sys.exit(main())
