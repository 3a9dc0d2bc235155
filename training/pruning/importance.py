"""Importance of attention heads and feed-forward rows, and entropy and distance of attention."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from training.data.length_buckets import BatchPlan
from training.data.pair_batches import PairPlan, PairSource
from training.pruning.evaluation_rows import EvaluationRows
from training.pruning.prunable_blocks import Block

_TINY = 1e-30


@dataclasses.dataclass(frozen=True)
class Importance:
    """Importance of the parts of a block, as means over rows.

    Attributes:
        heads: Absolute gradient of the loss with respect to a gate on each head (natural logarithm), float64 [N].
        rows: The same for each feed-forward row, float64 [F].
        entropy: Entropy of the attention of each head (natural logarithm), float64 [N].
        distance: Distance to the attended tokens, in tokens, float64 [N]; NaN for cross-attention.
    """

    heads: np.ndarray
    rows: np.ndarray
    entropy: np.ndarray
    distance: np.ndarray


def measure_importance(rows: EvaluationRows, blocks: Sequence[Block]) -> list[Importance]:
    """Measures the importance of the parts of each block, one row at a time.

    The layers need no gates: the gradient of a gate of 1 on a head, or on an inner value of the feed-forward network,
    is the sum of weights times gradients over the kernel rows that read it.

    Source: Michel et al. 2019, arXiv:1905.10650, §4; of single values: Molchanov et al. 2017, arXiv:1611.06440.
    """
    source = rows.source
    function: Any = None
    totals: list[np.ndarray] = []
    plans = _single_rows(source)
    for plan in plans:
        batch = source.batch(plan)
        if function is None:
            function = _trace(rows, blocks, batch)
        features = {name: tf.constant(values) for name, values in batch["features"].items()}
        found = function(features, tf.constant(batch["targets"]))
        found = [part.numpy().astype(np.float64) for part in found]
        totals = [total + part for total, part in zip(totals, found, strict=True)] if totals else found
    heads, inner, entropy, distance = (total / len(plans) for total in totals)
    head_ends = np.cumsum([block.heads for block in blocks])[:-1]
    row_ends = np.cumsum([block.rows for block in blocks])[:-1]
    parts = (np.split(heads, head_ends), np.split(inner, row_ends))
    attention = (np.split(entropy, head_ends), np.split(distance, head_ends))
    return [Importance(*each) for each in zip(*parts, *attention, strict=True)]


def _single_rows(source: Any) -> list[Any]:
    """A plan for each row alone, so that nothing is padded."""
    if isinstance(source, PairSource):
        lengths = source.input_lengths.tolist()
        return [PairPlan(np.array([row]), tuple(each), 1) for row, each in enumerate(lengths)]
    return [BatchPlan(np.array([row]), int(length), 1) for row, length in enumerate(source.lengths)]


def _trace(rows: EvaluationRows, blocks: Sequence[Block], batch: dict) -> Any:
    """A graph for rows of any length: absolute gradients of the gates, entropies and distances."""
    kernels = [block.output_kernel.value for block in blocks]
    kernels += [block.contract_kernel.value for block in blocks]

    def measure(features, targets):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(kernels)
            outputs, weights = rows.outputs(features)
            loss = tf.reduce_sum(rows.task.row_losses(targets, outputs))
        gradients = tape.gradient(loss, kernels, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        # Gradient times weights, summed over the outputs of each kernel row.
        by_row = [
            tf.reduce_sum(kernel * slope, axis=1) for kernel, slope in zip(kernels, gradients, strict=True)
        ]
        heads = [
            tf.reduce_sum(tf.reshape(each, (block.heads, block.head_size)), axis=1)
            for block, each in zip(blocks, by_row[: len(blocks)], strict=True)
        ]
        attention = [_attention_statistics(block, weights) for block in blocks]
        return (
            tf.abs(tf.concat(heads, axis=0)),
            tf.abs(tf.concat(by_row[len(blocks) :], axis=0)),
            tf.concat([entropy for entropy, _ in attention], axis=0),
            tf.concat([distance for _, distance in attention], axis=0),
        )

    specs = {
        name: tf.TensorSpec([None] * values.ndim, values.dtype) for name, values in batch["features"].items()
    }
    targets = batch["targets"]
    return tf.function(measure, autograph=False).get_concrete_function(
        specs, tf.TensorSpec([None] * targets.ndim, targets.dtype)
    )


def _attention_statistics(block: Block, weights: dict[str, Any]) -> tuple[Any, Any]:
    """Mean entropy and mean distance of each head of a block, float32 [N] each."""
    maps = [weights[name][index][0] for name, index in block.maps]  # [N, T, S]
    entropies = [-tf.reduce_sum(each * tf.math.log(tf.maximum(each, _TINY)), axis=-1) for each in maps]
    entropy = tf.add_n([tf.reduce_mean(each, axis=-1) for each in entropies]) / len(maps)
    if block.across:
        return entropy, tf.fill([block.heads], np.float32("nan"))
    distances = []
    for each in maps:
        places = tf.range(tf.shape(each)[-1])
        apart = tf.cast(tf.abs(places[:, None] - places[None, :]), tf.float32)
        distances.append(tf.reduce_mean(tf.reduce_sum(each * apart, axis=-1), axis=-1))
    return entropy, tf.add_n(distances) / len(maps)


def leave_one_head_out(rows: EvaluationRows, blocks: Sequence[Block]) -> list[list[dict[str, float]]]:
    """Scores of the model without one head, for every head of every block; the weights are restored afterwards."""
    evaluator = rows.evaluator()
    found = []
    for block in blocks:
        kernel, size = block.output_kernel, block.head_size
        whole = kernel.numpy()
        found.append([])
        for head in range(block.heads):
            changed = whole.copy()
            changed[head * size : (head + 1) * size] = 0
            kernel.assign(changed)
            try:
                found[-1].append(evaluator.scores())
            finally:
                kernel.assign(whole)
    return found
