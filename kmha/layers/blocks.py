"""Sequences cut into blocks of equal length, the blocks on the first axis so that loops may take them one by one."""

import keras
from keras import ops


def even_size(length, most: int):
    """The size of blocks, at most so many, that leaves the least to fill up.

    Args:
        length: Of the sequence; an int, or int32 [] where it is not known.
        most: Largest block.
    """
    count = num_blocks(length, most)
    return num_blocks(length, count)


def num_blocks(length, size):
    """How many blocks of a size cover a length; never 0."""
    if isinstance(length, int) and isinstance(size, int):
        return max(1, -(-length // size))
    return ops.maximum((length + size - 1) // size, 1)


def split_blocks(x, size):
    """Cuts [B, N, T, H] into [blocks, B, N, size, H]; what lacks at the end is filled up with zeros.

    Args:
        x: Of any type.
        size: Of a block.
    """
    batch, heads, length, width = ops.shape(x)
    count = num_blocks(length, size)
    x = pad_axis(x, count * size - length, axis=2)
    return ops.transpose(ops.reshape(x, (batch, heads, count, size, width)), (2, 0, 1, 3, 4))


def join_blocks(blocks, length):
    """The inverse of `in_blocks`: [blocks, B, N, size, H] to [B, N, length, H]."""
    count, batch, heads, size, width = ops.shape(blocks)
    x = ops.transpose(blocks, (1, 2, 0, 3, 4))
    return ops.reshape(x, (batch, heads, count * size, width))[:, :, :length]


def pad_axis(x, missing, axis: int, before=0):
    """Adds so many zeros at the end of an axis, and some before its beginning; either may be a tensor."""
    widths = [(0, 0)] * len(x.shape)
    widths[axis] = (before, missing)
    return ops.pad(x, widths)


_STEPS = 2**16  # 16 random bits a weight: half the time of 32, and a rate to a 65,536th


class GivenSeed(keras.random.SeedGenerator):
    """Gives `keras.random` a seed that is a tensor, which it takes from generators only."""

    def __init__(self, seed):  # makes no state: it has none
        self.given = seed

    def next(self, ordered: bool = True):
        """The seed, always."""
        return self.given


def block_seed(seed, number):
    """The seed of a block.

    Args:
        seed: Two integers, as `keras.random.SeedGenerator.next` gives them; they count up in the second one.
        number: Of the block, int32 [].
    """
    number = ops.cast(number, seed.dtype)
    return seed + ops.stack([number, ops.zeros_like(number)])


def keep_rate(rate: float) -> float:
    """How much `kept` really keeps: 1 - rate, to a 65,536th."""
    return 1.0 - round(rate * _STEPS) / _STEPS


def keep_mask(shape, rate: float, seed):
    """Which values are kept, float32 of this shape, 0 or 1; the same seed keeps the same.

    Args:
        shape: Of four axes; each a number or int32 [].
        rate: Probability of dropping a value.
        seed: Two integers.
    """
    *outer, last = shape
    half = (last + 1) // 2
    bits = keras.random.randint((*outer, half, 1), -(2**31), 2**31 - 1, dtype="int32", seed=GivenSeed(seed))
    halves = ops.reshape(ops.view(bits, dtype="int16"), (*outer, 2 * half))[..., :last]
    return ops.cast(halves >= round(rate * _STEPS) - _STEPS // 2, "float32")
