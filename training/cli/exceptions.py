"""Exceptions and signals that end a run without a model; this module does not import TensorFlow."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any


class Interrupted(Exception):
    """The run received a stop signal; a checkpoint was saved."""


class TrainingDiverged(Exception):
    """The loss is NaN or infinite."""


class CheckpointWriteError(Exception):
    """A checkpoint could not be written; earlier checkpoints are unchanged."""


class WorkerLost(Exception):
    """Another worker of the job failed, so this worker cannot continue."""


class NotChief(Exception):
    """Training is finished and this worker is not the chief, which does the remaining work."""


@contextlib.contextmanager
def signal_handler(handler: Callable[[int, Any], Any] | signal.Handlers, *numbers: int) -> Iterator[None]:
    """Inside the block, a handler receives these signals; only the main thread can set handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
