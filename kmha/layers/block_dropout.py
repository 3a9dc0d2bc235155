"""Dropout of one block of attention weights, which a backward pass can make again from the seed."""

import keras
from keras import ops

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


def kept_rate(rate: float) -> float:
    """How much `kept` really keeps: 1 - rate, to a 65,536th."""
    return 1.0 - round(rate * _STEPS) / _STEPS


def kept(shape, rate: float, seed):
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
