"""What goes on inside encoders, for whoever wants to look while a model is called."""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any, NamedTuple


class Trace(NamedTuple):
    """One pass of a sequence through the blocks of an encoder.

    Attributes:
        encoder: The `TransformerEncoder`.
        states: What entered the first block and what left each block, float [B, T, D] each.
        weights: Attention weights of each block, float32 [B, N, T, T].
        mask: int32 [B, T]; 1 = a real token.
    """

    encoder: Any
    states: list[Any]
    weights: list[Any]
    mask: Any


_traces: contextvars.ContextVar[list[Trace] | None] = contextvars.ContextVar("traces", default=None)


@contextlib.contextmanager
def traced() -> Iterator[list[Trace]]:
    """Inside, each pass through an encoder is added to the list that it yields, in the order of the calls.

    The tensors belong to the graph, or the eager code, that the models are called in.
    """
    found: list[Trace] = []
    token = _traces.set(found)
    try:
        yield found
    finally:
        _traces.reset(token)


def note(trace: Trace) -> None:
    """Adds a pass to the list of `traced`, if anybody looks."""
    traces = _traces.get()
    if traces is not None:
        traces.append(trace)
