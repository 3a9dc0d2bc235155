"""Splits sequences into blocks of equal length, and makes dropout masks of single blocks of attention weights."""

import keras
from keras import ops

_STEPS = 2**16  # 16 random bits for each weight: half the time of 32 bits, and rates to a 65,536th


def even_size(length, max_size: int):
    """The block size, at most `max_size`, with the least padding.

    Args:
        length: Sequence length: an int, or int32 [] if unknown.
        max_size: Largest block.
    """
    count = num_blocks(length, max_size)
    return num_blocks(length, count)


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


class GivenSeed(keras.random.SeedGenerator):
    """A seed generator that returns one seed, which may be a tensor; `keras.random` takes tensors only this way."""

    def __init__(self, seed):  # creates no variable
        self.given = seed

    def next(self, ordered: bool = True):
        """The seed."""
        return self.given


def block_seed(seed, number):
    """The seed of a block.

    Args:
        seed: Two integers from `keras.random.SeedGenerator.next`, which counts in the second one.
        number: Index of the block, int32 [].
    """
    number = ops.cast(number, seed.dtype)
    return seed + ops.stack([number, ops.zeros_like(number)])


def keep_rate(rate: float) -> float:
    """The exact share of ones in `keep_mask`: 1 - rate, rounded to a 65,536th."""
    return 1.0 - round(rate * _STEPS) / _STEPS


def keep_mask(shape, rate: float, seed):
    """A dropout mask, float32; 1 = keep. The same seed gives the same mask, for example in a backward pass.

    Args:
        shape: Four sizes, each an int or int32 [].
        rate: Dropout rate.
        seed: Two integers.
    """
    *outer, last = shape
    half = (last + 1) // 2
    bits = keras.random.randint((*outer, half, 1), -(2**31), 2**31 - 1, dtype="int32", seed=GivenSeed(seed))
    halves = ops.reshape(ops.view(bits, dtype="int16"), (*outer, 2 * half))[..., :last]
    return ops.cast(halves >= round(rate * _STEPS) - _STEPS // 2, "float32")
