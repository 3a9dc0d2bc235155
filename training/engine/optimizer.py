"""AdamW with the same result on any number of replicas, and learning rate schedules.

Dense variables use TensorFlow's fused kernel. Of embedding tables only the rows that a step used are updated;
duplicate rows are summed before squaring (`docs/decisions/002-row-wise-embedding-update.md`).
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal

import tensorflow as tf

Decay = Literal["linear", "cosine", "constant"]
Gradient = tf.Tensor | tf.IndexedSlices
# Weight decay skips vectors and scalars: biases and norms.
SMALLEST_DECAYED_RANK = 2


@dataclasses.dataclass(frozen=True)
class LearningRateSchedule:
    """How the learning rate of a variable differs from the global one.

    Attributes:
        factor: Multiplies the global learning rate.
        first_step: The first step that updates the variable; 0 = the first of the run.
    """

    factor: float = 1.0
    first_step: int = 0


def warmup_then_decay(
    peak: float, total_steps: int, warmup_steps: int, decay: Decay = "linear"
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Linear warm-up to the peak, then decay to 0 at the step after the last.

    Args:
        peak: The highest learning rate.
        total_steps: Optimizer steps of the run.
        warmup_steps: Steps of the warm-up.
        decay: Shape of the decay; "constant" stays at the peak.

    Returns:
        A function from an integer step (0 = the first) to a float32 learning rate.
    """

    def learning_rate(step: tf.Tensor) -> tf.Tensor:
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

    return learning_rate


class AdamW(tf.Module):
    """Adam with decoupled weight decay, which skips biases and norms.

    Args:
        variables: Trainable variables; create the optimizer in the scope of their strategy.
        learning_rate: From step to learning rate.
        weight_decay: Times the learning rate, the share of a weight that each step removes.
        beta_1: Decay of the mean of gradients.
        beta_2: Decay of the mean of squared gradients.
        epsilon: Added to the root of the mean square.
        row_factor: Multiplies the learning rate of tables that are updated by rows.
        schedules: One for each variable; None: the global learning rate from the first step.

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
        row_factor: float = 1.0,
        schedules: Sequence[LearningRateSchedule] | None = None,
    ):
        super().__init__(name="adamw")
        self.variables_ = list(variables)
        self.learning_rate_at = learning_rate
        self.weight_decay = weight_decay
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon
        self.row_factor = row_factor
        self.schedules = (
            [LearningRateSchedule()] * len(self.variables_) if schedules is None else list(schedules)
        )
        self.iterations = tf.Variable(tf.constant(0, tf.int64), trainable=False, name="iterations")
        self.means = [_slot(v, "mean") for v in self.variables_]
        self.squares = [_slot(v, "square") for v in self.variables_]

    @property
    def steps_done(self) -> int:
        """Steps that updated the weights."""
        return int(self.iterations.numpy())

    @property
    def learning_rate(self) -> tf.Tensor:
        """Learning rate of the next step."""
        return self.learning_rate_at(self.iterations)

    def apply(
        self, strategy: tf.distribute.Strategy, gradients: Sequence[Gradient], proceed: tf.Tensor
    ) -> None:
        """One step on every replica; call it in cross-replica context.

        Args:
            strategy: The strategy of the variables.
            gradients: One for each variable, already summed over replicas; slices must have distinct indices.
            proceed: bool []; False changes nothing.
        """

        def step_all():
            step = tf.cast(self.iterations + 1, tf.float32)
            powers = tf.pow(self.beta_1, step), tf.pow(self.beta_2, step)
            for variable, schedule, *others in zip(
                self.variables_, self.schedules, self.means, self.squares, gradients, strict=True
            ):
                learning_rate = schedule.factor * self.learning_rate
                if schedule.first_step:
                    learning_rate = tf.where(self.iterations < schedule.first_step, 0.0, learning_rate)
                strategy.extended.update(
                    variable, self._update, args=(*others, learning_rate, *powers), group=False
                )
            strategy.extended.update(self.iterations, lambda steps: steps.assign_add(1), group=False)
            return True

        tf.cond(proceed, step_all, lambda: False)

    def _update(self, variable, mean, square, gradient, learning_rate, power_1, power_2):
        decay = self.weight_decay * learning_rate if len(variable.shape) >= SMALLEST_DECAYED_RANK else None
        update = self._update_rows if isinstance(gradient, tf.IndexedSlices) else self._update_all
        update(variable, mean, square, gradient, learning_rate, power_1, power_2, decay)

    def _update_all(self, variable, mean, square, gradient, learning_rate, power_1, power_2, decay):
        if decay is not None:
            # Not `variable * (1 - decay)`: near 1 float32 has steps of 6e-8, and a decay may be 5e-7.
            variable.assign_sub(decay * variable)
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=mean.handle,
            v=square.handle,
            beta1_power=power_1,
            beta2_power=power_2,
            lr=learning_rate,
            beta1=self.beta_1,
            beta2=self.beta_2,
            epsilon=self.epsilon,
            grad=gradient,
        )

    def _update_rows(self, variable, mean, square, gradient, learning_rate, power_1, power_2, decay):
        rows, values = gradient.indices, gradient.values
        new_mean = self.beta_1 * tf.gather(mean, rows) + (1 - self.beta_1) * values
        new_square = self.beta_2 * tf.gather(square, rows) + (1 - self.beta_2) * tf.square(values)
        corrected = self.row_factor * learning_rate * tf.sqrt(1 - power_2) / (1 - power_1)
        change = corrected * new_mean / (tf.sqrt(new_square) + self.epsilon)
        if decay is not None:
            change += decay * tf.gather(variable, rows)
        mean.scatter_update(tf.IndexedSlices(new_mean, rows))
        square.scatter_update(tf.IndexedSlices(new_square, rows))
        variable.scatter_sub(tf.IndexedSlices(change, rows))


def _slot(variable, name: str) -> tf.Variable:
    return tf.Variable(tf.zeros(variable.shape, variable.dtype), trainable=False, name=name)


def merge_duplicate_rows(gradient: tf.IndexedSlices) -> tf.IndexedSlices:
    """The gradient with the slices of each row summed and without rows of zeros."""
    rows, segments = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, segments, tf.size(rows))
    used = tf.where(tf.reduce_any(values != 0, axis=-1))[:, 0]
    return tf.IndexedSlices(tf.gather(values, used), tf.gather(rows, used), gradient.dense_shape)


def scale_gradient(gradient: Gradient, factor: tf.Tensor) -> Gradient:
    """The gradient times a scalar; slices stay slices."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values * factor, gradient.indices, gradient.dense_shape)
    return gradient * factor


def sum_gradients(gradients: Sequence[Gradient]) -> Gradient:
    """The sum of gradients of one variable; the sum of slices has slices with equal indices."""
    slices = [each for each in gradients if isinstance(each, tf.IndexedSlices)]
    if not slices:
        return tf.add_n(gradients)
    values, indices = (
        tf.concat([getattr(each, name) for each in slices], 0) for name in ("values", "indices")
    )
    return tf.IndexedSlices(values, indices, slices[0].dense_shape)


def global_norm(gradients: Sequence[Gradient]) -> tf.Tensor:
    """The Euclidean norm of all gradients as one vector, float32 []; slices must have distinct indices."""
    values = [g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients]
    # l2_loss is half the sum of squares, in one pass.
    return tf.sqrt(2.0 * tf.add_n([tf.nn.l2_loss(tf.cast(v, tf.float32)) for v in values]))
