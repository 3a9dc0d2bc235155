"""Which way attention takes: over all pairs at once where texts are short, in blocks where they are long."""

import contextlib
import contextvars
from collections.abc import Iterator

# Measured (docs/how-to/long-texts.md): about from here on blocks take no more time, and less than half the memory.
LONG_FROM = 2048
_long_from = contextvars.ContextVar[int | None]("long_from", default=LONG_FROM)


@contextlib.contextmanager
def blocks_from(length: int | None) -> Iterator[None]:
    """Inside, attention is computed, or traced, in blocks from another length on.

    Args:
        length: In tokens; None: never, for exports to runtimes without loops.
    """
    token = _long_from.set(length)
    try:
        yield
    finally:
        _long_from.reset(token)


def in_blocks(length, other, longest: int | None) -> bool:
    """Whether attention of these lengths is to be computed in blocks.

    Where they are known only when it runs, the longest decides: a graph that holds both ways and chooses then has a
    gradient that XLA cannot compile (`docs/decisions/011-long-attention.md`).

    Args:
        length: T, of the queries: an int, or a tensor where it is not known.
        other: S, of the keys.
        longest: Longest sequence that there will be; None: any.
    """
    long_from = _long_from.get()
    if long_from is None:
        return False
    if isinstance(length, int) and isinstance(other, int):
        return length * other >= long_from**2
    return longest is None or longest >= long_from
