"""The training step: the same weights after it on one device, on N GPUs, and on M workers.

Keras' own step is not (its clipping, its sparse AdamW and its uneven last batch depend on the replicas, and it
refuses XLA under a strategy). Here each replica runs forward and backward alone, in XLA if asked; sums of
gradients and of weights are all-reduced; and only then, outside XLA and identically everywhere, comes the
division by the weight of the whole batch, the clipping and the optimizer.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import tensorflow as tf

from training.optimizer import AdamW, Gradient, global_norm, merged_rows, scaled
from training.precision import LossScale, all_finite

Batch = dict[str, object]
StrategyName = Literal["auto", "one", "mirrored"]
SUM = tf.distribute.ReduceOp.SUM


def make_strategy(name: StrategyName = "auto") -> tf.distribute.Strategy:
    """The strategy of that name.

    Args:
        name: "one" device; "mirrored" over all GPUs, or over all logical CPUs where there is no GPU; "auto" is
            mirrored with two or more GPUs and one device otherwise.
    """
    gpus = [device.name for device in tf.config.list_logical_devices("GPU")]
    if name == "one" or (name == "auto" and len(gpus) < 2):
        return tf.distribute.get_strategy()
    devices = gpus or [device.name for device in tf.config.list_logical_devices("CPU")]
    return tf.distribute.MirroredStrategy(devices)


class TrainingStep(tf.Module):
    """Moves a model's weights by one batch, or by several accumulated ones.

    Args:
        model: A built Keras model, made in the strategy's scope.
        loss: From targets and the model's output to float32 [B], the loss of each example.
        optimizer: Made in the strategy's scope over the model's trainable variables.
        strategy: Where to compute.
        jit_compile: Whether XLA compiles forward and backward.
        clip_norm: Largest global norm of the mean gradient; None never clips.
        accumulation_steps: Batches of one optimizer step.
        loss_scale: For float16; None for the other precisions.

    Call:
        batch: "features" {name: int32 [B, T]}, "targets" [B, …], "weights" float32 [B]. B must be divisible by
            the replicas; rows of weight 0 count for nothing, so they fill up an uneven batch exactly.
        Returns {"loss", "weight"}: float32 sums over the batch.
    """

    def __init__(
        self,
        model,
        loss: Callable,
        optimizer: AdamW,
        strategy: tf.distribute.Strategy,
        jit_compile: bool = False,
        clip_norm: float | None = 1.0,
        accumulation_steps: int = 1,
        loss_scale: LossScale | None = None,
    ):
        super().__init__(name="training_step")
        self.model = model
        self.loss = loss
        self.optimizer = optimizer
        self.strategy = strategy
        self.clip_norm = clip_norm
        self.accumulation_steps = accumulation_steps
        self.loss_scale = loss_scale
        self.jit_compile = jit_compile
        self.variables_ = [variable.value for variable in model.trainable_variables]
        self._forward_backward = tf.function(
            self._gradients, jit_compile=jit_compile, reduce_retracing=not jit_compile
        )
        self.pending = 0
        if accumulation_steps > 1:
            self._make_accumulators()

    def _make_accumulators(self) -> None:
        # Each replica adds up its own; they meet only when the optimizer moves.
        local = {
            "synchronization": tf.VariableSynchronization.ON_READ,
            "aggregation": tf.VariableAggregation.SUM,
        }
        self.accumulators = [
            tf.Variable(tf.zeros(v.shape, v.dtype), trainable=False, **local) for v in self.variables_
        ]
        self.accumulated_weight = tf.Variable(0.0, trainable=False, **local)
        # Which gradients come as slices is known only after the first backward pass.
        self.sliced: list[bool] = []

    def __call__(self, batch: Batch) -> dict[str, tf.Tensor]:
        """See the class."""
        batch = shard(batch, self.strategy)
        if self.accumulation_steps == 1:
            return self._step(batch)
        sums = self._accumulate(batch)
        self.pending += 1
        if self.pending == self.accumulation_steps:
            self.flush()
        return sums

    def flush(self) -> None:
        """Moves the weights by what has been accumulated so far, if anything."""
        if self.pending:
            self._apply_accumulated()
            self.pending = 0

    def _gradients(self, batch, scale):
        """Gradients of the summed loss on this replica, with the sums of loss and weight."""
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(self.variables_)
            output = self.model(batch["features"], training=True)
            weights = tf.cast(batch["weights"], tf.float32)
            total = tf.reduce_sum(self.loss(batch["targets"], output) * weights)
            objective = total * scale
        gradients = tape.gradient(
            objective, self.variables_, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        return gradients, total, tf.reduce_sum(weights)

    def _scale(self) -> tf.Tensor:
        return tf.constant(1.0) if self.loss_scale is None else self.loss_scale.value()

    @tf.function(reduce_retracing=True)
    def _step(self, batch):
        def replica_step(batch):
            gradients, total, weight = self._forward_backward(batch, self._scale())
            return self._reduce_and_apply(gradients, weight, total)

        total, weight = self.strategy.run(replica_step, args=(batch,))
        return {"loss": _first(self.strategy, total), "weight": _first(self.strategy, weight)}

    @tf.function(reduce_retracing=True)
    def _accumulate(self, batch):
        def replica_accumulate(batch):
            gradients, total, weight = self._forward_backward(batch, self._scale())
            self.sliced = [isinstance(g, tf.IndexedSlices) for g in gradients]
            for accumulator, gradient in zip(self.accumulators, gradients, strict=True):
                accumulator.assign_add(tf.convert_to_tensor(gradient))
            self.accumulated_weight.assign_add(weight)
            return tf.distribute.get_replica_context().all_reduce(SUM, [total, weight])

        total, weight = self.strategy.run(replica_accumulate, args=(batch,))
        return {"loss": _first(self.strategy, total), "weight": _first(self.strategy, weight)}

    @tf.function
    def _apply_accumulated(self):
        def replica_apply():
            gradients = [
                _rows_of(accumulator.read_value()) if sliced else accumulator.read_value()
                for accumulator, sliced in zip(self.accumulators, self.sliced, strict=True)
            ]
            self._reduce_and_apply(gradients, self.accumulated_weight.read_value(), tf.constant(0.0))
            for accumulator in (*self.accumulators, self.accumulated_weight):
                accumulator.assign(tf.zeros_like(accumulator))

        self.strategy.run(replica_apply)

    def _reduce_and_apply(self, gradients: Sequence[Gradient], weight, total):
        """Sums over replicas, then one identical optimizer step on each."""
        context = tf.distribute.get_replica_context()
        total, weight = context.all_reduce(SUM, [total, weight])
        gradients = [_all_reduce(context, gradient) for gradient in gradients]
        factor = 1.0 / (tf.maximum(weight, 1e-12) * self._scale())
        gradients = [scaled(gradient, factor) for gradient in gradients]
        norm = global_norm(gradients)
        if self.clip_norm is not None:
            shrink = self.clip_norm / tf.maximum(norm, self.clip_norm)
            gradients = [scaled(gradient, shrink) for gradient in gradients]
        # A norm that is not finite is a float16 overflow or a diverged run; neither may reach the weights.
        proceed = tf.logical_and(all_finite(norm), weight > 0)
        context.merge_call(self._apply, args=(gradients, proceed))
        return total, weight

    def _apply(self, strategy, gradients, proceed):
        proceed = _first(strategy, proceed)
        self.optimizer.apply(strategy, gradients, proceed)
        if self.loss_scale is not None:
            self.loss_scale.adjust(strategy, proceed)


def _all_reduce(context, gradient: Gradient) -> Gradient:
    if not isinstance(gradient, tf.IndexedSlices):
        return context.all_reduce(SUM, gradient)
    # Slices are gathered, not added, over replicas: merge duplicates after.
    return merged_rows(context.all_reduce(SUM, gradient) if context.num_replicas_in_sync > 1 else gradient)


def _rows_of(dense: tf.Tensor) -> tf.IndexedSlices:
    """The rows of a dense gradient that are not zero."""
    rows = tf.where(tf.reduce_any(dense != 0, axis=-1))[:, 0]
    return tf.IndexedSlices(tf.gather(dense, rows), rows, tf.shape(dense))


def _first(strategy: tf.distribute.Strategy, value):
    """One replica's copy of a value that is the same on all."""
    return strategy.experimental_local_results(value)[0]


def shard(batch: Batch, strategy: tf.distribute.Strategy) -> Batch:
    """Gives each replica its rows of the batch, in order; one replica gets the batch itself."""
    replicas = strategy.num_replicas_in_sync
    if replicas == 1:
        return batch

    def split(value):
        parts = tf.split(tf.convert_to_tensor(value), replicas)
        return strategy.experimental_distribute_values_from_function(
            lambda context: parts[context.replica_id_in_sync_group]
        )

    return tf.nest.map_structure(split, batch)
