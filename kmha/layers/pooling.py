"""Pooling: one vector for a sequence, and weights that pool tokens to words."""

import keras
from keras import ops

from kmha.layers.configurable_layer import ConfigurableLayer

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
    """The maximum of each feature over unmasked positions, float [B, D]; zeros where all are masked."""
    mask = ops.cast(ops.expand_dims(padding_mask, -1), "bool")
    lowest = -60_000.0  # finite in float16 too
    highest = ops.max(ops.where(mask, inputs, ops.cast(lowest, inputs.dtype)), axis=1)
    return ops.where(ops.any(mask, axis=1), highest, ops.zeros_like(highest))


@keras.saving.register_keras_serializable(package="kmha")
class Pooling(ConfigurableLayer):
    """Reduces a sequence to one vector.

    Args:
        mode: "cls" (the first position), "mean" or "max".

    Call:
        inputs: float [B, T, D].
        padding_mask: int32 or bool [B, T]; 1 = a real position. None: `mask`, which Keras fills from the inputs. If
            both are None, all positions are real.
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
        """Has no weights to create."""

    def call(self, inputs, padding_mask=None, mask=None):
        """See the class."""
        pool = {"cls": cls_pool, "mean": mean_pool, "max": max_pool}[self.mode]
        padding_mask = mask if padding_mask is None else padding_mask
        return pool(inputs, ops.ones_like(inputs[..., 0]) if padding_mask is None else padding_mask)

    def compute_mask(self, inputs, previous_mask=None):
        """None: the result has no positions."""


WORD_MODES = ("first", "mean")


def first_token_weights(word_starts, length):
    """Weights 0 or 1 that select each word's first token, float32 [B, W, T], from their positions int32 [B, W].

    Position 0 is no word; `length` is T.
    """
    starts = ops.expand_dims(word_starts, -1)  # [B, W, 1]
    found = ops.logical_and(ops.equal(starts, ops.arange(length, dtype="int32")), starts > 0)
    return ops.cast(found, "float32")


def mean_token_weights(word_starts, padding_mask):
    """Weights of each word's mean over its tokens, float32 [B, W, T]; words may be in any order.

    Args:
        word_starts: int32 [B, W], position of each word's first token; 0 = no word.
        padding_mask: int32 [B, T]; 1 = a real token. The last real token belongs to no word.
    """
    places = ops.arange(ops.shape(padding_mask)[1], dtype="int32")
    last = ops.max(ops.cast(padding_mask, "int32") * places, axis=1)  # [B]
    starts, others = ops.expand_dims(word_starts, 2), ops.expand_dims(word_starts, 1)
    # A word ends where the next one starts.
    next_starts = ops.where(others > starts, others, ops.reshape(last, (-1, 1, 1)))
    ends = ops.expand_dims(ops.min(next_starts, axis=2), -1)  # [B, W, 1]
    inside = ops.logical_and(ops.logical_and(starts > 0, places >= starts), places < ends)
    weights = ops.cast(inside, "float32")
    return weights / ops.maximum(ops.sum(weights, axis=-1, keepdims=True), 1.0)
