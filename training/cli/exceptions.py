"""Exceptions and signals that end a run without a model; this module does not import TensorFlow."""

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any


class Interrupted(Exception):
    """The run received a stop signal; a checkpoint was saved."""


class TrainingDiverged(Exception):
    """The loss is NaN or infinite; the hint says what the user may change."""

    def __init__(self, message: str, hint: str = "lower --optimizer.learning-rate"):
        super().__init__(message)
        self.hint = hint


class CheckpointWriteError(Exception):
    """A checkpoint could not be written; earlier checkpoints are unchanged."""


class WorkerLost(Exception):
    """Another worker of the job failed, so this worker cannot continue."""


class NotChief(Exception):
    """Training is finished and this worker is not the chief, which does the remaining work."""


class _Stop:
    """Whether a signal to stop was received, and whether it must not be raised now."""

    is_requested, delays = False, 0


def interrupt(number: int, frame: Any) -> None:
    """A signal handler: raises KeyboardInterrupt, so that temporary files are removed.

    A library that calls back into Python may discard the exception. Therefore `check_stop` raises it again.
    """
    _Stop.is_requested = True
    if not _Stop.delays:
        raise KeyboardInterrupt(signal.Signals(number).name)


def check_stop() -> None:
    """Raises KeyboardInterrupt if a signal to stop was received and the command goes on."""
    if _Stop.is_requested:
        raise KeyboardInterrupt


@contextlib.contextmanager
def delayed_stop() -> Iterator[None]:
    """Raises KeyboardInterrupt only before and after the block, which renames files that belong together."""
    check_stop()
    _Stop.delays += 1
    try:
        yield
    finally:
        _Stop.delays -= 1
    check_stop()


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Handles SIGTERM and SIGINT by `interrupt` inside the block."""
    _Stop.is_requested = False
    try:
        with signal_handler(interrupt, *_stop_signals()):
            yield
    finally:
        _Stop.is_requested = False


def _stop_signals() -> list[signal.Signals]:
    # A shell starts background commands with SIGINT ignored.
    is_ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    return [signal.SIGTERM] if is_ignored else [signal.SIGTERM, signal.SIGINT]


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


@contextlib.contextmanager
def deferred_signals() -> Iterator[list[int]]:
    """Collects SIGINT and SIGTERM in the list that it yields; a second signal raises KeyboardInterrupt."""
    received: list[int] = []

    def receive(number: int, frame: Any) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)
        print("\nstopping after this batch", file=sys.stderr)

    with signal_handler(receive, *_stop_signals()):
        yield received
