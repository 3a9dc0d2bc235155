"""What each head and each feed-forward row is worth to a model, and where heads look."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from training.data.length_buckets import BatchPlan
from training.data.pair_batches import PairPlan, PairSource
from training.pruning.evaluation_rows import MeasuredRows
from training.pruning.prunable_blocks import Block

_TINY = 1e-30


@dataclasses.dataclass(frozen=True)
class Importance:
    """What rows say of a block.

    Attributes:
        heads: Of each head the mean over rows of how much the loss changes with a gate on it, in nats, float64 [N].
        rows: The same of each feed-forward row, float64 [F].
        entropy: Of each head the mean entropy of what a token attends to, in nats, float64 [N].
        distance: And how many tokens away that is on average, float64 [N]; NaN where another text is looked at.
    """

    heads: np.ndarray
    rows: np.ndarray
    entropy: np.ndarray
    distance: np.ndarray


def importances(rows: MeasuredRows, blocks: Sequence[Block]) -> list[Importance]:
    """What rows say of each block; every row is asked alone.

    A gate of 1 on a head, or on an inner value of the feed-forward network, is a gate on the rows of the kernel that
    read it. So its gradient is the sum over these rows of weights times their gradients, and the layers need no gates.

    Args:
        rows: Whose labels the model knows.
        blocks: Of the model.

    Source: Michel et al. 2019, arXiv:1905.10650, §4; of single values: Molchanov et al. 2017, arXiv:1611.06440.
    """
    source = rows.source
    look: Any = None
    totals: list[np.ndarray] = []
    plans = _single_rows(source)
    for plan in plans:
        batch = source.batch(plan)
        if look is None:
            look = _traced(rows, blocks, batch)
        given = {name: tf.constant(values) for name, values in batch["features"].items()}
        found = [part.numpy().astype(np.float64) for part in look(given, tf.constant(batch["targets"]))]
        totals = [total + part for total, part in zip(totals, found, strict=True)] if totals else found
    heads, inner, entropy, distance = (total / len(plans) for total in totals)
    head_ends = np.cumsum([block.heads for block in blocks])[:-1]
    row_ends = np.cumsum([block.rows for block in blocks])[:-1]
    parts = (np.split(heads, head_ends), np.split(inner, row_ends))
    looks = (np.split(entropy, head_ends), np.split(distance, head_ends))
    return [Importance(*each) for each in zip(*parts, *looks, strict=True)]


def _single_rows(source: Any) -> list[Any]:
    """A plan for each row alone, so that nothing is padded."""
    if isinstance(source, PairSource):
        lengths = source.input_lengths.tolist()
        return [PairPlan(np.array([row]), tuple(each), 1) for row, each in enumerate(lengths)]
    return [BatchPlan(np.array([row]), int(length), 1) for row, length in enumerate(source.lengths)]


def _traced(rows: MeasuredRows, blocks: Sequence[Block], batch: dict) -> Any:
    """A graph for rows of any length: magnitudes of the gates' gradients, entropies and distances."""
    kernels = [block.output_kernel.value for block in blocks]
    kernels += [block.contract_kernel.value for block in blocks]

    def look(features, targets):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(kernels)
            outputs, weights = rows.outputs(features)
            loss = tf.reduce_sum(rows.task.row_losses(targets, outputs))
        gradients = tape.gradient(loss, kernels, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        # A gradient times the weights, added up over what a row of the kernel writes.
        by_row = [
            tf.reduce_sum(kernel * slope, axis=1) for kernel, slope in zip(kernels, gradients, strict=True)
        ]
        heads = [
            tf.reduce_sum(tf.reshape(each, (block.heads, block.head_size)), axis=1)
            for block, each in zip(blocks, by_row[: len(blocks)], strict=True)
        ]
        looks = [_looks(block, weights) for block in blocks]
        return (
            tf.abs(tf.concat(heads, axis=0)),
            tf.abs(tf.concat(by_row[len(blocks) :], axis=0)),
            tf.concat([entropy for entropy, _ in looks], axis=0),
            tf.concat([distance for _, distance in looks], axis=0),
        )

    specs = {
        name: tf.TensorSpec([None] * values.ndim, values.dtype) for name, values in batch["features"].items()
    }
    targets = batch["targets"]
    return tf.function(look, autograph=False).get_concrete_function(
        specs, tf.TensorSpec([None] * targets.ndim, targets.dtype)
    )


def _looks(block: Block, weights: dict[str, Any]) -> tuple[Any, Any]:
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


def without_each_head(rows: MeasuredRows, blocks: Sequence[Block]) -> list[list[dict[str, float]]]:
    """Scores of the model without one head, for every head of every block; the model is the same again afterwards.

    Args:
        rows: Whose labels the model knows.
        blocks: Of the model.
    """
    evaluated = rows.evaluated()
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
                found[-1].append(evaluated.scores())
            finally:
                kernel.assign(whole)
    return found
