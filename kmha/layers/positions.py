"""Position encodings: added sinusoidal or learned vectors, or rotated queries and keys."""

import math

import keras
import numpy as np
from keras import ops

from kmha.layers.configurable_layer import ConfigurableLayer
from kmha.layers.initial_values import normal

LONGEST_WAVE = 10_000.0


def frequencies(num_pairs: int) -> np.ndarray:
    """Angular frequencies in radians per position, float32 [num_pairs], decreasing from 1 towards 1 / 10,000."""
    return np.exp(-math.log(LONGEST_WAVE) * np.arange(num_pairs) / num_pairs).astype("float32")


def sinusoids(length: int, dim: int) -> np.ndarray:
    """Sines (even columns) and cosines (odd columns) of each position, float32 [length, dim].

    Source: Vaswani et al. 2017, §3.5, arXiv:1706.03762.
    """
    angles = np.arange(length)[:, None] * frequencies((dim + 1) // 2)[None, :]
    table = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(length, -1)
    return table[:, :dim].astype("float32")


def rotate(heads):
    """Rotates pairs of values by an angle proportional to the position, so that dot products depend on distances only.

    From and to float [B, N, T, H] with even H; the pair of value i is value i + H / 2. Position 0 is unchanged, and
    lengths of vectors too.

    Source: Su et al. 2021, arXiv:2104.09864 (the half-split form).
    """
    if heads.shape[-1] % 2:
        raise ValueError(f"rotary positions need an even head size, got {heads.shape[-1]}")
    half = heads.shape[-1] // 2
    positions = ops.cast(ops.arange(ops.shape(heads)[2]), "float32")
    angles = ops.expand_dims(positions, -1) * frequencies(half)  # [T, H / 2]
    cos, sin = ops.cast(ops.cos(angles), heads.dtype), ops.cast(ops.sin(angles), heads.dtype)
    first, second = heads[..., :half], heads[..., half:]
    return ops.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


@keras.saving.register_keras_serializable(package="kmha")
class PositionEmbedding(ConfigurableLayer):
    """Adds a position vector to each token's vector.

    Args:
        max_length: Maximum sequence length.
        learned: Whether the vectors are trained; otherwise they are sinusoids.

    Call:
        inputs: float [B, T, D] with T at most max_length.
        first: int32 [B], position of each row's first token; None: 0. Positions beyond the table are undefined
            (an error in TensorFlow on a CPU).
        positions: int32 [B, T], position of each token; None: they are consecutive.
        Returns float [B, T, D].

    Raises:
        ValueError: T is known and larger than max_length.
    Source: Vaswani et al. 2017, §3.5, arXiv:1706.03762.
    """

    def __init__(self, max_length: int, learned: bool = True, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.max_length = max_length
        self.learned = learned

    def build(self, inputs_shape):
        """Creates the table [max_length, D]."""
        shape = (self.max_length, inputs_shape[-1])
        if self.learned:
            self.table = self.add_weight(name="table", shape=shape, initializer=normal())
        else:
            self.table = sinusoids(*shape)

    def call(self, inputs, first=None, positions=None):
        """See the class."""
        if inputs.shape[1] is not None and inputs.shape[1] > self.max_length:
            raise ValueError(f"length must be at most max_length {self.max_length}, got {inputs.shape[1]}")
        table = ops.convert_to_tensor(self.table, dtype=self.compute_dtype)
        if first is None and positions is None:
            return inputs + table[: ops.shape(inputs)[1]]
        if positions is None:
            positions = ops.expand_dims(first, -1) + ops.arange(ops.shape(inputs)[1], dtype="int32")
        return inputs + ops.take(table, positions, axis=0)
