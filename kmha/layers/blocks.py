"""Sequences cut into blocks of equal length, the blocks on the first axis so that loops may take them one by one."""

from keras import ops


def even_size(length, most: int):
    """The size of blocks, at most so many, that leaves the least to fill up.

    Args:
        length: Of the sequence; an int, or int32 [] where it is not known.
        most: Largest block.
    """
    count = number_of(length, most)
    return number_of(length, count)


def number_of(length, size):
    """How many blocks of a size cover a length; never 0."""
    if isinstance(length, int) and isinstance(size, int):
        return max(1, -(-length // size))
    return ops.maximum((length + size - 1) // size, 1)


def in_blocks(x, size):
    """Cuts [B, N, T, H] into [blocks, B, N, size, H]; what lacks at the end is filled up with zeros.

    Args:
        x: Of any type.
        size: Of a block.
    """
    batch, heads, length, width = ops.shape(x)
    count = number_of(length, size)
    x = filled_up(x, count * size - length, axis=2)
    return ops.transpose(ops.reshape(x, (batch, heads, count, size, width)), (2, 0, 1, 3, 4))


def joined_blocks(blocks, length):
    """The inverse of `in_blocks`: [blocks, B, N, size, H] to [B, N, length, H]."""
    count, batch, heads, size, width = ops.shape(blocks)
    x = ops.transpose(blocks, (1, 2, 0, 3, 4))
    return ops.reshape(x, (batch, heads, count * size, width))[:, :, :length]


def filled_up(x, missing, axis: int, before=0):
    """Adds so many zeros at the end of an axis, and some before its beginning; either may be a tensor."""
    widths = [(0, 0)] * len(x.shape)
    widths[axis] = (before, missing)
    return ops.pad(x, widths)
