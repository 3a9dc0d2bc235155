"""One vector for a sequence, under its mask."""

import keras
from keras import ops

MODES = ("cls", "mean", "max")


def cls_pool(inputs, padding_mask):
    """The first position, float [B, D]; zeros where it is masked."""
    return inputs[:, 0] * ops.cast(padding_mask[:, :1], inputs.dtype)


def mean_pool(inputs, padding_mask):
    """The mean of the unmasked positions, float [B, D]; zeros where all are masked. Summed in float32."""
    mask = ops.cast(ops.expand_dims(padding_mask, -1), "float32")  # [B, T, 1]
    total = ops.sum(ops.cast(inputs, "float32") * mask, axis=1)
    return ops.cast(total / ops.maximum(ops.sum(mask, axis=1), 1.0), inputs.dtype)


def max_pool(inputs, padding_mask):
    """The largest value of each feature over unmasked positions, float [B, D]; zeros where all are masked."""
    mask = ops.cast(ops.expand_dims(padding_mask, -1), "bool")
    lowest = -60_000.0  # finite in float16 too
    highest = ops.max(ops.where(mask, inputs, ops.cast(lowest, inputs.dtype)), axis=1)
    return ops.where(ops.any(mask, axis=1), highest, ops.zeros_like(highest))


@keras.saving.register_keras_serializable(package="kmha")
class Pooling(keras.layers.Layer):
    """Reduces a sequence to one vector.

    Args:
        mode: "cls" (the first position), "mean" or "max".

    Call:
        inputs: float [B, T, D].
        padding_mask: int32 or bool [B, T]; 1 = a real position.
        Returns float [B, D]; zeros for a row without real positions.

    Raises:
        ValueError: The mode is not one of the three.
    """

    def __init__(self, mode: str = "mean", **kwargs):
        super().__init__(**kwargs)
        if mode not in MODES:
            raise ValueError(f"mode must be one of {MODES}, got {mode!r}")
        self.mode = mode

    def build(self, inputs_shape):
        """Nothing to make."""

    def call(self, inputs, padding_mask):
        """See the class."""
        pool = {"cls": cls_pool, "mean": mean_pool, "max": max_pool}[self.mode]
        return pool(inputs, padding_mask)

    def get_config(self):
        """The constructor's arguments."""
        return {**super().get_config(), "mode": self.mode}
