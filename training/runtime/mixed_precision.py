"""Mixed precision: Keras dtype policies, and loss scaling for float16."""

from typing import Any, Literal

import tensorflow as tf

from kmha.models.encoder import copy_of

Precision = Literal["float32", "bfloat16", "float16"]
POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}


def to_float32(model: Any) -> Any:
    """The model with the same weights and computation in float32, for evaluation, saving and export."""
    if model.compute_dtype == "float32":
        return model
    return copy_of(model, dtype="float32")


def all_finite(value: tf.Tensor) -> tf.Tensor:
    """Whether all values are finite, bool []."""
    return tf.reduce_all(tf.math.is_finite(value))


class LossScale(tf.Module):
    """A factor for the loss that prevents the underflow of small float16 gradients.

    It is halved when a gradient overflows and doubled after `growth_steps` steps without overflow. A power of two
    changes no bits of the mantissa. Source: Micikevicius et al. 2018, §3.2, arXiv:1710.03740.
    """

    def __init__(self, initial: float = 2.0**15, growth_steps: int = 1000):
        super().__init__(name="loss_scale")
        self.growth_steps = growth_steps
        self.factor = tf.Variable(tf.constant(initial, tf.float32), trainable=False, name="factor")
        self.good_steps = tf.Variable(tf.constant(0, tf.int64), trainable=False, name="good_steps")

    def value(self) -> tf.Tensor:
        """The current factor, float32 []."""
        return self.factor.read_value()

    def adjust(self, strategy: tf.distribute.Strategy, finite: tf.Tensor) -> None:
        """Updates the factor after a step with finite or infinite gradients; call it in cross-replica context."""

        def update(factor, good_steps, finite):
            grow = tf.logical_and(finite, good_steps + 1 >= self.growth_steps)
            new = tf.where(grow, factor * 2.0, tf.where(finite, factor, factor / 2.0))
            factor.assign(tf.clip_by_value(new, 1.0, 2.0**24))
            return good_steps.assign(tf.where(tf.logical_and(finite, ~grow), good_steps + 1, 0))

        strategy.extended.update(self.factor, update, args=(self.good_steps, finite), group=False)
