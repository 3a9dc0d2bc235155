"""The training step: it gives the same weights on one device, on several GPUs and on several workers.

With Keras' own step the weights depend on the number of replicas (through clipping, sparse AdamW and an uneven last
batch), and it refuses XLA under a strategy. Here each replica runs forward and backward, in XLA if requested. Then the
sums of gradients and of weights are all-reduced. Division by the weight of the batch, clipping and the optimizer
follow outside XLA, identically on every replica.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import tensorflow as tf

from kmha.errors import InputError
from training.config.config import BATCH_ROWS, TrainSection
from training.engine.optimizer import (
    AdamW,
    Gradient,
    global_norm,
    merge_duplicate_rows,
    scale_gradient,
    sum_gradients,
)
from training.runtime.mixed_precision import LossScale, all_finite
from training.runtime.traced import trace_once

Batch = dict[str, object]
StrategyName = Literal["auto", "one", "mirrored"]
SUM = tf.distribute.ReduceOp.SUM


def make_strategy(name: StrategyName = "auto") -> tf.distribute.Strategy:
    """Returns the distribution strategy: "auto" is mirrored with two or more GPUs, else one device.

    "mirrored" uses all GPUs, or all logical CPUs without a GPU.
    """
    gpus = [device.name for device in tf.config.list_logical_devices("GPU")]
    if name == "one" or (name == "auto" and len(gpus) < 2):
        return tf.distribute.get_strategy()
    devices = gpus or [device.name for device in tf.config.list_logical_devices("CPU")]
    return tf.distribute.MirroredStrategy(devices)


def check_enough_rows(plans: Sequence[Any], settings: TrainSection, replicas: int, origin: str) -> None:
    """Checks that every replica gets rows of each batch; raises InputError if not."""
    sizes = [len(plan.rows) for plan in plans]
    if sum(sizes) < replicas:
        raise InputError(
            f"{origin}: expected at least {replicas} training rows, one per replica, got {sum(sizes)}"
        )
    rows = settings.batch_rows or BATCH_ROWS
    if rows < replicas:
        raise InputError(f"--train.batch-rows: expected at least {replicas}, one row per replica, got {rows}")
    if max(sizes) < replicas:
        raise InputError(
            f"--train.batch-tokens: expected enough for {replicas} rows, one per replica, got"
            f" {settings.batch_tokens}, enough for {max(sizes)}"
        )


class TrainingStep(tf.Module):
    """Updates the weights of a model by one batch, or by several accumulated batches.

    Args:
        model: A built Keras model, made in the scope of the strategy, or another object with trainable variables.
        loss: From targets and the model's output to the loss of each example, float32 [B].
        optimizer: Made in the scope of the strategy over the model's trainable variables.
        strategy: Where to compute.
        jit_compile: Whether XLA compiles forward and backward.
        clip_norm: Largest global norm of the mean gradient; None never clips.
        accumulation_steps: Batches of one optimizer step.
        loss_scale: For float16; None for the other precisions.
        forward: From features to the input of the loss; None: the model's output in training.
        shards: Parts of a replica's rows that its cores compute in parallel; see `training.runtime.cpu_sharding`.

    Call:
        batch: "features" {name: int32 [B, T]}, "targets" [B, …], "weights" float32 [B]. B must be divisible
            by the replicas times the shards. Rows of weight 0 have no effect: they fill an uneven batch.
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
        forward: Callable | None = None,
        shards: int = 1,
    ):
        super().__init__(name="training_step")
        self.model = model
        self.loss = loss
        self.forward = forward or (lambda features: model(features, training=True))
        self.optimizer = optimizer
        self.strategy = strategy
        self.clip_norm = clip_norm
        self.accumulation_steps = accumulation_steps
        self.loss_scale = loss_scale
        self.jit_compile = jit_compile
        self.shards = shards
        self.variables_ = [variable.value for variable in model.trainable_variables]
        self._forward_backward = tf.function(self._gradients, jit_compile=jit_compile, autograph=False)
        self._compute = trace_once(self._step if accumulation_steps == 1 else self._accumulate)
        self.pending = 0
        if accumulation_steps > 1:
            self._make_accumulators()

    def _make_accumulators(self) -> None:
        # Each replica has its own sums; they are all-reduced when the optimizer steps.
        local = {
            "synchronization": tf.VariableSynchronization.ON_READ,
            "aggregation": tf.VariableAggregation.SUM,
        }
        self.accumulators = [
            tf.Variable(tf.zeros(v.shape, v.dtype), trainable=False, **local) for v in self.variables_
        ]
        self.accumulated_weight = tf.Variable(tf.constant(0.0), trainable=False, **local)
        # Known after the first backward pass: which gradients are slices.
        self.sliced: list[bool] = []

    def __call__(self, batch: Batch) -> dict[str, tf.Tensor]:
        """Runs the step; see the class."""
        sums = self._compute(batch)
        if self.accumulation_steps == 1:
            return sums
        self.pending += 1
        if self.pending == self.accumulation_steps:
            self.flush()
        return sums

    def flush(self) -> None:
        """Updates the weights by the gradients accumulated so far, if there are any."""
        if self.pending:
            self._apply_accumulated()
            self.pending = 0

    def _gradients(self, batch, scale):
        """Gradients of the summed loss on this replica, and the sums of loss and weight."""
        if self.shards == 1:
            return self._gradients_of(batch, scale)
        found = [self._gradients_of(_slice_rows(batch, i, self.shards), scale) for i in range(self.shards)]
        by_shard, totals, weights = zip(*found, strict=True)
        return list(map(sum_gradients, zip(*by_shard, strict=True))), tf.add_n(totals), tf.add_n(weights)

    def _gradients_of(self, batch, scale):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(self.variables_)
            output = self.forward(batch["features"])
            weights = tf.cast(batch["weights"], tf.float32)
            total = tf.reduce_sum(self.loss(batch["targets"], output) * weights)
            objective = total * scale
        gradients = tape.gradient(
            objective, self.variables_, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        return gradients, total, tf.reduce_sum(weights)

    def _scale(self) -> tf.Tensor:
        return tf.constant(1.0) if self.loss_scale is None else self.loss_scale.value()

    def _step(self, batch):
        def replica_step():
            gradients, total, weight = self._forward_backward(_replica_rows(batch), self._scale())
            return self._reduce_and_apply(gradients, weight, total)

        total, weight = self.strategy.run(replica_step)
        return {"loss": _first(self.strategy, total), "weight": _first(self.strategy, weight)}

    def _accumulate(self, batch):
        def replica_accumulate():
            gradients, total, weight = self._forward_backward(_replica_rows(batch), self._scale())
            self.sliced = [isinstance(g, tf.IndexedSlices) for g in gradients]
            for accumulator, gradient in zip(self.accumulators, gradients, strict=True):
                accumulator.assign_add(tf.convert_to_tensor(gradient))
            self.accumulated_weight.assign_add(weight)
            return tf.distribute.get_replica_context().all_reduce(SUM, [total, weight])

        total, weight = self.strategy.run(replica_accumulate)
        return {"loss": _first(self.strategy, total), "weight": _first(self.strategy, weight)}

    @tf.function(autograph=False)
    def _apply_accumulated(self):
        def replica_apply():
            gradients = [
                _nonzero_rows(accumulator.read_value()) if sliced else accumulator.read_value()
                for accumulator, sliced in zip(self.accumulators, self.sliced, strict=True)
            ]
            self._reduce_and_apply(gradients, self.accumulated_weight.read_value(), tf.constant(0.0))
            for accumulator in (*self.accumulators, self.accumulated_weight):
                accumulator.assign(tf.zeros_like(accumulator))

        self.strategy.run(replica_apply)

    def _reduce_and_apply(self, gradients: Sequence[Gradient], weight, total):
        """Sums over replicas, then the same optimizer step on each."""
        context = tf.distribute.get_replica_context()
        total, weight = context.all_reduce(SUM, [total, weight])
        gradients = [_all_reduce(context, gradient) for gradient in gradients]
        factor = 1.0 / (tf.maximum(weight, 1e-12) * self._scale())
        norm = global_norm(gradients) * factor
        if self.clip_norm is not None:
            factor *= self.clip_norm / tf.maximum(norm, self.clip_norm)
        # One pass for division and clipping: a pass over all gradients of a large model takes measurable time.
        gradients = [scale_gradient(gradient, factor) for gradient in gradients]
        context.merge_call(self._apply, args=(gradients, all_finite(norm), weight > 0))
        return total, weight

    def _apply(self, strategy, gradients, finite, has_weight):
        finite, has_weight = _first(strategy, finite), _first(strategy, has_weight)
        # The norm is not finite after a float16 overflow or divergence: the weights stay as they are.
        self.optimizer.apply(strategy, gradients, tf.logical_and(finite, has_weight))
        if self.loss_scale is not None:
            self.loss_scale.adjust(strategy, finite)


def _all_reduce(context, gradient: Gradient) -> Gradient:
    if context.num_replicas_in_sync > 1:
        # Concatenates the slices of the replicas.
        gradient = context.all_reduce(SUM, gradient)
    return merge_duplicate_rows(gradient) if isinstance(gradient, tf.IndexedSlices) else gradient


def _nonzero_rows(dense: tf.Tensor) -> tf.IndexedSlices:
    rows = tf.where(tf.reduce_any(dense != 0, axis=-1))[:, 0]
    return tf.IndexedSlices(tf.gather(dense, rows), rows, tf.shape(dense))


def _first(strategy: tf.distribute.Strategy, value):
    """The value on the first replica."""
    return strategy.experimental_local_results(value)[0]


def _replica_rows(batch: Batch) -> Batch:
    """The rows of this replica; all replicas of a worker get the same batch."""
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return batch
    # Each worker has its own batch, for its own replicas.
    replicas = len(context.strategy.extended.worker_devices)
    if replicas == 1:
        return batch
    return _slice_rows(batch, context.replica_id_in_sync_group % replicas, replicas)


def _slice_rows(batch: Batch, number, count: int) -> Batch:
    """The rows of part `number` of `count` equal parts."""

    def slice_rows(value):
        rows = tf.shape(value)[0] // count
        return value[number * rows : (number + 1) * rows]

    return tf.nest.map_structure(slice_rows, batch)
