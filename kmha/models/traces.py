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
        weights: Attention weights of each block, float32 [B, N, T, T]; none, if nobody asked for them.
        mask: int32 [B, T]; 1 = a real token.
    """

    encoder: Any
    states: list[Any]
    weights: list[Any]
    mask: Any


class _Looking(NamedTuple):
    found: list[Trace]
    weights: bool


_looking: contextvars.ContextVar[_Looking | None] = contextvars.ContextVar("looking", default=None)


@contextlib.contextmanager
def traced(weights: bool = False) -> Iterator[list[Trace]]:
    """Inside, each pass through an encoder is added to the list that it yields, in the order of the calls.

    The tensors belong to the graph, or the eager code, that the models are called in.

    Args:
        weights: Whether attention weights are looked at, too, which of long texts take much memory.
    """
    found: list[Trace] = []
    token = _looking.set(_Looking(found, weights))
    try:
        yield found
    finally:
        _looking.reset(token)


def weights_requested() -> bool:
    """Whether somebody looks at attention weights."""
    looking = _looking.get()
    return looking is not None and looking.weights


def record_trace(trace: Trace) -> None:
    """Adds a pass to the list of `traced`, if anybody looks."""
    looking = _looking.get()
    if looking is not None:
        looking.found.append(trace)
