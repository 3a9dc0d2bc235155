"""Records hidden states and attention weights of encoders while a model is called."""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any, NamedTuple


class Trace(NamedTuple):
    """One pass of a sequence through the blocks of an encoder.

    Attributes:
        encoder: The `TransformerEncoder`.
        states: Input of the first block and output of each block, float [B, T, D] each.
        weights: Attention weights of each block, float32 [B, N, T, T]; empty unless requested.
        mask: int32 [B, T]; 1 = a real token.
    """

    encoder: Any
    states: list[Any]
    weights: list[Any]
    mask: Any


class _Recording(NamedTuple):
    traces: list[Trace]
    weights: bool


_recording: contextvars.ContextVar[_Recording | None] = contextvars.ContextVar("recording", default=None)


@contextlib.contextmanager
def traced(weights: bool = False) -> Iterator[list[Trace]]:
    """Yields a list to which each pass through an encoder is appended, in the order of the calls.

    The tensors belong to the graph or the eager code in which the models are called.

    Args:
        weights: Whether to record attention weights too, which need much memory for long texts.
    """
    traces: list[Trace] = []
    token = _recording.set(_Recording(traces, weights))
    try:
        yield traces
    finally:
        _recording.reset(token)


def weights_requested() -> bool:
    """Whether attention weights are recorded."""
    recording = _recording.get()
    return recording is not None and recording.weights


def record_trace(trace: Trace) -> None:
    """Appends a pass to the list of `traced`, if there is one."""
    recording = _recording.get()
    if recording is not None:
        recording.traces.append(trace)
