"""Parts of dense, blockwise and windowed attention: the masks' bias and blocks of sequences.

Exports and tests set the score of masked places, and the length from which blocks are used, with context managers.
"""

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
def _set(variable: contextvars.ContextVar, value: float | None) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def masked_score(score: float) -> contextlib.AbstractContextManager[None]:
    """Traces attention with another score in masked places, low enough that its softmax is nearly 0.

    For exports to 8-bit integers: -1e9 would use up the 256 steps, and all real scores would become equal.
    """
    return _set(_score_of_masked, score)


def mask_bias(mask):
    """The bias that masks scores: 0 where the mask (of any shape) is 1, the masked score where it is 0.

    Added, not selected by `where`: the same softmax, and mobile runtimes can fuse the op.
    """
    return (1.0 - ops.cast(mask, "float32")) * _score_of_masked.get()


def blocks_from(length: int | None) -> contextlib.AbstractContextManager[None]:
    """Computes or traces attention in blocks from this number of tokens on; None: never, for runtimes without loops."""
    return _set(_long_from, length)


def uses_blocks(length, other, max_length: int | None) -> bool:
    """Whether attention of T = `length` queries and S = `other` keys, ints or tensors, is computed in blocks.

    If the lengths are unknown at trace time, the maximum length decides (None: unlimited): XLA cannot compile the
    gradient of a graph that contains both ways and selects one at run time (`docs/decisions/011-long-attention.md`).
    """
    long_from = _long_from.get()
    if long_from is None:
        return False
    if isinstance(length, int) and isinstance(other, int):
        return length * other >= long_from**2
    return max_length is None or max_length >= long_from


def even_size(length, max_size: int):
    """The block size, at most `max_size`, with the least padding; `length` is an int, or int32 [] if unknown."""
    return num_blocks(length, num_blocks(length, max_size))


def num_blocks(length, size):
    """Number of blocks of a size that cover a length; at least 1."""
    if isinstance(length, int) and isinstance(size, int):
        return max(1, -(-length // size))
    return ops.maximum((length + size - 1) // size, 1)


def split_blocks(x, size):
    """Splits [B, N, T, H] into [blocks, B, N, size, H], with zeros at the end of the last block.

    The blocks are on the first axis, so that loops can take them one by one.
    """
    batch, heads, length, width = ops.shape(x)
    count = num_blocks(length, size)
    x = pad_axis(x, count * size - length, axis=2)
    return ops.transpose(ops.reshape(x, (batch, heads, count, size, width)), (2, 0, 1, 3, 4))


def join_blocks(blocks, length):
    """The inverse of `split_blocks`: [blocks, B, N, size, H] to [B, N, length, H]."""
    count, batch, heads, size, width = ops.shape(blocks)
    x = ops.transpose(blocks, (1, 2, 0, 3, 4))
    return ops.reshape(x, (batch, heads, count * size, width))[:, :, :length]


def pad_axis(x, after, axis: int):
    """Adds zeros at the end of an axis; their number may be a tensor."""
    widths = [(0, 0)] * len(x.shape)
    widths[axis] = (0, after)
    return ops.pad(x, widths)
