"""AdamW with the same result on any number of replicas, learning rate schedules, and the average of the weights.

Dense variables use TensorFlow's fused kernel. Of embedding tables only the rows that a step used are updated;
duplicate rows are summed before squaring (`docs/decisions/002-row-wise-embedding-update.md`).
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal

import tensorflow as tf

from kmha.errors import InputError
from training.config.config import FinetuneSection, OptimizerSection

Decay = Literal["linear", "cosine", "constant"]
Gradient = tf.Tensor | tf.IndexedSlices
# Weight decay skips vectors and scalars: biases and norms.
SMALLEST_DECAYED_RANK = 2


@dataclasses.dataclass(frozen=True)
class LearningRateSchedule:
    """How the learning rate of a variable differs from the global one."""

    factor: float = 1.0
    first_step: int = 0  # the first step that updates the variable; 0 = the first of the run


def warmup_then_decay(
    peak: float, total_steps: int, warmup_steps: int, decay: Decay = "linear"
) -> Callable[[tf.Tensor], tf.Tensor]:
    """The learning rate of a step (0 = the first): linear warm-up to the peak, then decay to 0 after the last."""

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

        The gradients are already summed over replicas; slices must have distinct indices. `proceed`, bool [], False
        changes nothing.
        """

        def step_all():
            step = tf.cast(self.iterations + 1, tf.float32)
            powers = tf.pow(self.beta_1, step), tf.pow(self.beta_2, step)
            # Once for all variables: operations of a schedule for each variable took a fifth of the time of tracing.
            base_rate = self.learning_rate
            for variable, schedule, *others in zip(
                self.variables_, self.schedules, self.means, self.squares, gradients, strict=True
            ):
                learning_rate = schedule.factor * base_rate
                if schedule.first_step:
                    learning_rate = tf.where(self.iterations < schedule.first_step, 0.0, learning_rate)
                strategy.extended.update(
                    variable, self._update, args=(*others, learning_rate, *powers), group=False
                )
            strategy.extended.update(self.iterations, lambda steps: steps.assign_add(1), group=False)
            return True

        tf.cond(proceed, step_all, lambda: False)

    def _update(self, variable, mean, square, gradient, learning_rate, power_1, power_2):
        decays = self.weight_decay and len(variable.shape) >= SMALLEST_DECAYED_RANK
        decay = self.weight_decay * learning_rate if decays else None
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


def freeze(model: Any, layers: int, new_ngrams: bool = False) -> None:
    """Freezes the lowest blocks of every encoder and the embedding below them, except new n-gram embeddings."""
    if not layers:
        return
    for encoder in _encoders(model):
        if layers > len(encoder.blocks):
            raise InputError(
                f"--finetune.frozen-layers: expected at most {len(encoder.blocks)}, the layers of the encoder,"
                f" got {layers}"
            )
        ngrams = encoder.embedding.ngrams.trainable_variables if new_ngrams else ()
        still_trained = {id(variable) for variable in ngrams}
        for part in (*_embedding_parts(encoder), *encoder.blocks[:layers]):
            for variable in part.trainable_variables:
                variable.trainable = id(variable) in still_trained


def learning_rate_schedules(
    model: Any,
    section: FinetuneSection,
    steps: int,
    variables: Sequence[Any] | None = None,
    new_ngrams: bool = False,
) -> list[LearningRateSchedule]:
    """The learning rate schedule of each trainable variable, in their order; of the model, or more in `variables`.

    N-gram embeddings that are trained from scratch get the learning rate of the head. Source: layer-wise decay and
    gradual unfreezing: Howard and Ruder 2018, arXiv:1801.06146.
    """
    decay = section.layer_decay or 1.0
    head_steps, all_steps = round(section.head_fraction * steps), round(section.unfreeze_fraction * steps)
    head = LearningRateSchedule(section.head_factor or 1.0)
    schedules: dict[int, LearningRateSchedule] = {}
    for encoder in _encoders(model):
        # From the highest block down to the embedding.
        levels = [[block] for block in reversed(encoder.blocks)] + [_embedding_parts(encoder)]
        for depth, parts in enumerate(levels):
            first_step = head_steps + all_steps * depth // max(1, len(levels) - 1)
            schedule = LearningRateSchedule(decay**depth, first_step)
            schedules |= {id(variable): schedule for part in parts for variable in part.trainable_variables}
        if new_ngrams:
            schedules |= {id(variable): head for variable in encoder.embedding.ngrams.trainable_variables}
    trained = model.trainable_variables if variables is None else variables
    return [schedules.get(id(variable), head) for variable in trained]


def _encoders(model: Any) -> list[Any]:
    return [encoder for index in range(len(model.encoder_configs)) for encoder in model.encoders_of(index)]


def encoder_blocks(model: Any) -> list[Any]:
    """The blocks of all encoders of a model."""
    return [block for encoder in _encoders(model) for block in encoder.blocks]


def _embedding_parts(encoder: Any) -> list[Any]:
    """The embedding and, in the post-norm form, its layer normalization."""
    is_post_norm = encoder.config.norm == "post" and encoder.norm is not None
    return [encoder.embedding, *([encoder.norm] if is_post_norm else [])]


class WeightAverage(tf.Module):
    """Exponential moving average of variables; create it in the scope of their strategy.

    Args:
        variables: What to average.
        strategy: The strategy of the variables.
        decay: Share of the average that each optimizer step keeps. The first steps keep less.
        every: Largest number of optimizer steps between two updates. One update then decays by that power of `decay`.
            With large embedding tables an update costs as much as a training step.

    Source: Polyak and Juditsky 1992; the warm-up of the decay as in tf.train.ExponentialMovingAverage.
    """

    def __init__(
        self,
        variables: Sequence,
        strategy: tf.distribute.Strategy,
        decay: float = OptimizerSection.ema_decay,
        every: int = 8,
    ):
        super().__init__(name="weight_average")
        self.live = list(variables)
        self.strategy = strategy
        self.decay = decay
        self.every = every
        self.averages = [tf.Variable(v, trainable=False, name="average") for v in self.live]

    def after_step(self, step: int) -> None:
        """Updates the average if an update is due after this optimizer step; the first step is 1."""
        interval = self.update_interval(step)
        if step % interval == 0:
            decay = min(self.decay, (1 + step) / (10 + step)) ** interval
            self._update(tf.constant(decay, tf.float32))

    def update_interval(self, step: int) -> int:
        """Steps between two updates: 1 at first, doubled each time that `every` updates were done at the old interval.

        With a fixed interval the average of a short run would stay near the initial weights.
        """
        interval = 1
        while 2 * interval <= self.every and 2 * interval * self.every <= step:
            interval *= 2
        return interval

    @tf.function(autograph=False)
    def _update(self, decay):
        for average, live in zip(self.averages, self.live, strict=True):
            self.strategy.extended.update(
                average, lambda a, v, d: a.assign_sub((1.0 - d) * (a - v)), args=(live, decay), group=False
            )

    @tf.function(autograph=False)
    def swap(self) -> None:
        """Exchanges the weights and their average."""

        def exchange(average, live):
            copy = tf.identity(live)
            with tf.control_dependencies([copy]):
                live.assign(average)
            average.assign(copy)

        for average, live in zip(self.averages, self.live, strict=True):
            self.strategy.extended.update(average, exchange, args=(live,), group=False)
