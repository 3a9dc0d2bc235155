"""AdamW whose result does not depend on the number of replicas, and the learning rate's course.

Dense variables take TensorFlow's fused kernel. Embedding tables move only in the rows a step used, duplicates
summed before squaring (`docs/decisions/002-row-wise-embedding-update.md`).
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal

import tensorflow as tf

Decay = Literal["linear", "cosine", "constant"]
Gradient = tf.Tensor | tf.IndexedSlices
# Vectors and scalars (biases, norms) are not decayed; neither are they ever worth it.
SMALLEST_DECAYED_RANK = 2


@dataclasses.dataclass(frozen=True)
class LearningRateSchedule:
    """How a variable's learning rate differs from that of all.

    Attributes:
        factor: Its rate over that of all.
        first_step: The step from which it moves; 0 = the first.
    """

    factor: float = 1.0
    first_step: int = 0


def warmup_then_decay(
    peak: float, total_steps: int, warmup_steps: int, decay: Decay = "linear"
) -> Callable[[tf.Tensor], tf.Tensor]:
    """The learning rate by step: linear up to the peak, then down to the 0 of the step after the last.

    Args:
        peak: The highest rate.
        total_steps: Optimizer steps of the whole run.
        warmup_steps: Steps of the rise.
        decay: Shape of the fall; "constant" stays at the peak.

    Returns:
        A function from an integer step (0 = the first) to a float32 rate.
    """

    def rate(step: tf.Tensor) -> tf.Tensor:
        step = tf.cast(step, tf.float32) + 1.0
        rise = step / max(1, warmup_steps)
        done = (step - warmup_steps) / max(1, total_steps - warmup_steps + 1)
        done = tf.clip_by_value(done, 0.0, 1.0)
        fall = {
            "linear": 1.0 - done,
            "cosine": 0.5 + 0.5 * tf.cos(3.141592653589793 * done),
            "constant": tf.ones_like(done),
        }[decay]
        return peak * tf.minimum(tf.minimum(rise, 1.0), fall)

    return rate


class AdamW(tf.Module):
    """Adam with decoupled weight decay off biases and norms.

    Args:
        variables: Trainable variables; create the optimizer in the scope of their strategy.
        learning_rate: From step to rate.
        weight_decay: Share of a weight lost each step, times the rate.
        beta_1: Decay of the mean of gradients.
        beta_2: Decay of the mean of squared gradients.
        epsilon: Added to the root of the mean square.
        row_rate: Learning rate of tables that move by rows, over that of the rest.
        courses: Of each variable, its rate over that of all; None: 1 from the first step.

    Source: Loshchilov and Hutter 2019, arXiv:1711.05101.
    """

    def __init__(
        self,
        variables: Sequence[tf.Variable],
        learning_rate: Callable[[tf.Tensor], tf.Tensor],
        weight_decay: float = 0.01,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        row_rate: float = 1.0,
        schedules: Sequence[LearningRateSchedule] | None = None,
    ):
        super().__init__(name="adamw")
        self.variables_ = list(variables)
        self.rate = learning_rate
        self.weight_decay = weight_decay
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon
        self.row_rate = row_rate
        self.schedules = (
            [LearningRateSchedule()] * len(self.variables_) if schedules is None else list(schedules)
        )
        self.iterations = tf.Variable(tf.constant(0, tf.int64), trainable=False, name="iterations")
        self.means = [_slot(v, "mean") for v in self.variables_]
        self.squares = [_slot(v, "square") for v in self.variables_]

    @property
    def steps_done(self) -> int:
        """Steps that moved the weights."""
        return int(self.iterations.numpy())

    @property
    def learning_rate(self) -> tf.Tensor:
        """The rate of the next step."""
        return self.rate(self.iterations)

    def apply(
        self, strategy: tf.distribute.Strategy, gradients: Sequence[Gradient], proceed: tf.Tensor
    ) -> None:
        """One step on every replica; call it in cross-replica context.

        Args:
            strategy: The strategy of the variables.
            gradients: One for each variable, already summed over replicas; slices must have distinct indices.
            proceed: bool []; False leaves everything as it is.
        """

        def move():
            step = tf.cast(self.iterations + 1, tf.float32)
            powers = tf.pow(self.beta_1, step), tf.pow(self.beta_2, step)
            for variable, schedule, *others in zip(
                self.variables_, self.schedules, self.means, self.squares, gradients, strict=True
            ):
                rate = schedule.factor * self.learning_rate
                if schedule.first_step:
                    rate = tf.where(self.iterations < schedule.first_step, 0.0, rate)
                strategy.extended.update(variable, self._update, args=(*others, rate, *powers), group=False)
            strategy.extended.update(self.iterations, lambda steps: steps.assign_add(1), group=False)
            return True

        tf.cond(proceed, move, lambda: False)

    def _update(self, variable, mean, square, gradient, rate, power_1, power_2):
        decay = self.weight_decay * rate if len(variable.shape) >= SMALLEST_DECAYED_RANK else None
        update = self._update_rows if isinstance(gradient, tf.IndexedSlices) else self._update_all
        update(variable, mean, square, gradient, rate, power_1, power_2, decay)

    def _update_all(self, variable, mean, square, gradient, rate, power_1, power_2, decay):
        if decay is not None:
            # Not times 1 - decay: next to 1 float32 has steps of 6e-8, and a decay may be 5e-7.
            variable.assign_sub(decay * variable)
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=mean.handle,
            v=square.handle,
            beta1_power=power_1,
            beta2_power=power_2,
            lr=rate,
            beta1=self.beta_1,
            beta2=self.beta_2,
            epsilon=self.epsilon,
            grad=gradient,
        )

    def _update_rows(self, variable, mean, square, gradient, rate, power_1, power_2, decay):
        rows, values = gradient.indices, gradient.values
        new_mean = self.beta_1 * tf.gather(mean, rows) + (1 - self.beta_1) * values
        new_square = self.beta_2 * tf.gather(square, rows) + (1 - self.beta_2) * tf.square(values)
        corrected = self.row_rate * rate * tf.sqrt(1 - power_2) / (1 - power_1)
        change = corrected * new_mean / (tf.sqrt(new_square) + self.epsilon)
        if decay is not None:
            change += decay * tf.gather(variable, rows)
        mean.scatter_update(tf.IndexedSlices(new_mean, rows))
        square.scatter_update(tf.IndexedSlices(new_square, rows))
        variable.scatter_sub(tf.IndexedSlices(change, rows))


def _slot(variable, name: str) -> tf.Variable:
    return tf.Variable(tf.zeros(variable.shape, variable.dtype), trainable=False, name=name)


def merge_duplicate_rows(gradient: tf.IndexedSlices) -> tf.IndexedSlices:
    """The same gradient with each row once, its slices summed, and rows of zeros left out."""
    rows, places = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(rows))
    moved = tf.where(tf.reduce_any(values != 0, axis=-1))[:, 0]
    return tf.IndexedSlices(tf.gather(values, moved), tf.gather(rows, moved), gradient.dense_shape)


def scale_gradient(gradient: Gradient, factor: tf.Tensor) -> Gradient:
    """The gradient times a scalar; slices stay slices."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values * factor, gradient.indices, gradient.dense_shape)
    return gradient * factor


def sum_gradients(gradients: Sequence[Gradient]) -> Gradient:
    """The sum of gradients of one variable; slices stay slices, of which some then have the same index."""
    slices = [each for each in gradients if isinstance(each, tf.IndexedSlices)]
    if not slices:
        return tf.add_n(gradients)
    values, indices = (
        tf.concat([getattr(each, name) for each in slices], 0) for name in ("values", "indices")
    )
    return tf.IndexedSlices(values, indices, slices[0].dense_shape)


def global_norm(gradients: Sequence[Gradient]) -> tf.Tensor:
    """The Euclidean length of all gradients as one vector, float32 []; slices must have distinct indices."""
    values = [g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients]
    # Half the sum of squares, in one pass over each.
    return tf.sqrt(2.0 * tf.add_n([tf.nn.l2_loss(tf.cast(v, tf.float32)) for v in values]))
