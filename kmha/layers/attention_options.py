"""Options of attention that exports and tests set with context managers: the mask value, and attention in blocks."""

import contextlib
import contextvars
from collections.abc import Iterator

from keras import ops

# Finite, so that the softmax of a fully masked row is finite too; such rows are set to zero afterwards.
# Softmax is computed in float32, where exp(-1e9) is exactly 0.
MASKED_SCORE = -1e9
# Measured (docs/how-to/long-texts.md): from about this length on, blocks take no more time and less than half the
# memory.
LONG_FROM = 2048
_score_of_masked = contextvars.ContextVar("score_of_masked", default=MASKED_SCORE)
_long_from = contextvars.ContextVar[int | None]("long_from", default=LONG_FROM)


@contextlib.contextmanager
def masked_score(score: float) -> Iterator[None]:
    """Traces attention with another score in masked places.

    For exports to 8-bit integers: -1e9 would use up the 256 steps, and all real scores would become equal.

    Args:
        score: Low enough that its softmax is nearly 0.
    """
    token = _score_of_masked.set(score)
    try:
        yield
    finally:
        _score_of_masked.reset(token)


def mask_bias(mask):
    """The bias that masks scores: 0 where the mask (of any shape) is 1, the masked score where it is 0.

    Added, not selected by `where`: the same softmax, and mobile runtimes can fuse the op.
    """
    return (1.0 - ops.cast(mask, "float32")) * _score_of_masked.get()


@contextlib.contextmanager
def blocks_from(length: int | None) -> Iterator[None]:
    """Computes or traces attention in blocks from another length on.

    Args:
        length: In tokens; None: never, for exports to runtimes without loops.
    """
    token = _long_from.set(length)
    try:
        yield
    finally:
        _long_from.reset(token)


def uses_blocks(length, other, max_length: int | None) -> bool:
    """Whether attention of these lengths is computed in blocks.

    If the lengths are unknown at trace time, the maximum length decides: XLA cannot compile the gradient of a graph
    that contains both ways and selects one at run time (`docs/decisions/011-long-attention.md`).

    Args:
        length: T of the queries: an int, or a tensor if unknown.
        other: S of the keys.
        max_length: Maximum length of a sequence; None: unlimited.
    """
    long_from = _long_from.get()
    if long_from is None:
        return False
    if isinstance(length, int) and isinstance(other, int):
        return length * other >= long_from**2
    return max_length is None or max_length >= long_from
