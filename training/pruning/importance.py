"""Blocks of a model that can be pruned, and the importance of their attention heads and feed-forward rows."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from kmha.bundle.bundle import Bundle
from kmha.bundle.manifest import CLASSIFY, MATCH, TAG
from kmha.errors import InputError
from kmha.features import SIDES, WORD_MASK
from kmha.models.pair_encoder import A_TO_A, A_TO_B, B_TO_A, B_TO_B, PAIR
from training.data.inputs import Inputs, Source, tokenize_parts
from training.data.length_buckets import BatchPlan
from training.data.pair_batches import PairPlan, PairSource
from training.evaluation.evaluator import Evaluator, read_labeled_rows
from training.io.examples import ColumnOverrides, Subset, label_ids
from training.tasks.protocol import Task

ATTENTION = "attention"
_NAME = "measured"
_TINY = 1e-30


@dataclasses.dataclass(frozen=True)
class Block:
    """A block of attention and a feed-forward network."""

    name: str  # such as "block 1", "a block 1" or "char round 1"
    layer: Any  # the `AttentionBlock`
    # Names of its attention weights in the model's outputs, and the layer index in each.
    maps: tuple[tuple[str, int], ...]
    across: bool = False  # cross-attention to the other text

    @property
    def heads(self) -> int:
        """Number of heads."""
        return self.layer.attention.num_heads

    @property
    def head_size(self) -> int:
        """Size of a head."""
        return self.layer.attention.head_size

    @property
    def rows(self) -> int:
        """Inner size of the feed-forward network."""
        return self.layer.feed_forward.intermediate_dim

    @property
    def output_kernel(self) -> Any:
        """Weights that read the heads, [N H, D]; a head whose rows are zero has no effect."""
        return self.layer.attention.output_kernel

    @property
    def contract_kernel(self) -> Any:
        """Weights that read the inner values of the feed-forward network, [F, D]."""
        return self.layer.feed_forward.contract.kernel


@dataclasses.dataclass(frozen=True)
class Group:
    """Blocks that share a size in the model's configuration: one block, or two if each text has its own encoder."""

    granularity: int  # index of the encoder's configuration
    is_round: bool  # a round of cross-attention
    index: int  # of the block, or round, in that encoder
    blocks: list[Block]


def prunable_groups(model: Any) -> list[Group]:
    """The blocks of a classifier, a matcher or a tagger, from the first to the last."""
    pairs = getattr(model, "pairs", None)
    if pairs is None:
        blocks = enumerate(model.encoder.blocks)
        names = ((i, f"block {i + 1}", layer) for i, layer in blocks)
        return [Group(0, False, i, [Block(name, layer, ((ATTENTION, i),))]) for i, name, layer in names]
    found = []
    for number, (name, pair) in enumerate(zip(model.granularities, pairs, strict=True)):
        found += _groups_of_pair(number, f"{name}_" if len(pairs) > 1 else "", pair)
    return found


def _groups_of_pair(number: int, prefix: str, pair: Any) -> list[Group]:
    """The blocks of the encoders of one granularity, then its rounds."""
    joint, shared = pair.form == "joint", pair.share_weights
    title = prefix.replace("_", " ")
    kinds = [("block", False, [encoder.blocks for encoder in pair.encoders], (A_TO_A, B_TO_B))]
    if pair.rounds_a:
        rounds = [pair.rounds_a] if shared else [pair.rounds_a, pair.rounds_b]
        kinds.append(("round", True, rounds, (A_TO_B, B_TO_A)))
    found = []
    for kind, is_round, stacks, names in kinds:
        for index in range(len(stacks[0])):
            maps = [((f"{prefix}{name}", index),) for name in names]
            if joint:
                maps = [((f"{prefix}{PAIR}", index),)]
            elif shared:
                maps = [(*maps[0], *maps[1])]
            sides = [""] if len(stacks) == 1 else [f"{side} " for side in SIDES]
            blocks = [
                Block(f"{title}{side}{kind} {index + 1}", stack[index], own, is_round)
                for side, stack, own in zip(sides, stacks, maps, strict=True)
            ]
            found.append(Group(number, is_round, index, blocks))
    return found


@dataclasses.dataclass(frozen=True)
class EvaluationRows:
    """Tokenized rows of a file, and a bundle that predicts them."""

    bundle: Bundle
    task: Task
    inputs: Inputs

    @classmethod
    def read(cls, bundle: Bundle, path: Path, columns: ColumnOverrides, folder: Path) -> "EvaluationRows":
        """Reads all rows of a file; raises InputError if it or a row of it is invalid, or it has no rows."""
        task, part = read_labeled_rows(bundle, path, columns, folder)
        inputs = tokenize_parts(bundle.preprocessor, {_NAME: part}, folder, windows=task.windows)
        return cls(bundle, _with_plain_loss(task), inputs)

    @property
    def part(self) -> Subset:
        """The rows."""
        return self.inputs.parts[_NAME]

    @property
    def source(self) -> Source:
        """Their tokens."""
        return self.inputs.evaluated(_NAME, self.task.targets(self.part, self.bundle.labels))

    @property
    def metric(self) -> str:
        """The score by which the run's weights were selected."""
        return self.task.metric

    def with_bundle(self, bundle: Bundle) -> "EvaluationRows":
        """The same rows for a bundle with the same tokenizer."""
        return dataclasses.replace(self, bundle=bundle)

    def sample(self, most: int, seed: int) -> "EvaluationRows":
        """Draws random rows among those whose label the model has; raises InputError if there are none."""
        part, bundle = self.part, self.bundle
        rows = part.rows
        has_one_label = bundle.task == CLASSIFY and not bundle.multi_label
        if has_one_label or (bundle.task == MATCH and bundle.model.target == "classes"):
            rows = rows[label_ids(part.examples, rows, bundle.labels)[0] < len(bundle.labels)]
        if not len(rows):
            raise InputError(f"{part.examples.origin}: expected rows with labels of the run, got none")
        if most and most < len(rows):
            rows = np.sort(np.random.default_rng(seed).choice(rows, most, replace=False))
        parts = {_NAME: dataclasses.replace(part, rows=rows)}
        return dataclasses.replace(self, inputs=dataclasses.replace(self.inputs, parts=parts))

    def evaluator(self) -> "RowEvaluator":
        """Evaluates the bundle's model on the rows, with its weights at the time of the call."""
        source = self.source
        return RowEvaluator(self, source, Evaluator.for_bundle(self.bundle, self.task, source))

    def outputs(self, features: Any) -> tuple[Any, dict[str, Any]]:
        """The outputs that the loss reads, and attention weights by name; without dropout."""
        model = self.bundle.model
        outputs, weights = model(features, return_attention_weights=True, training=False)
        named = weights if isinstance(weights, dict) else {"attention": weights}
        if self.bundle.task == TAG:
            return model.potentials(outputs, features[WORD_MASK]), named
        return outputs, named


@dataclasses.dataclass(frozen=True)
class RowEvaluator:
    """Rows, their tokens, and the evaluator of a model."""

    rows: EvaluationRows
    source: Source
    evaluator: Evaluator

    def scores(self) -> dict[str, float]:
        """Loss, and the metric if it is defined for the rows."""
        rows, bundle = self.rows, self.rows.bundle
        decision = {} if bundle.thresholds is None else {"thresholds": bundle.thresholds}
        found = rows.task.scores(rows.part, bundle.labels, self.evaluator.predict(self.source), decision)
        return {name: found[name] for name in ("loss", rows.metric) if found.get(name) is not None}


def _with_plain_loss(task: Any) -> Any:
    """The task with a plain loss of single rows: no label smoothing, no margin, no contrast to other rows."""
    if hasattr(task, "label_smoothing"):
        task = dataclasses.replace(task, label_smoothing=0.0)
    if hasattr(task, "loss"):
        task = dataclasses.replace(task, loss="squares" if task.target == "graded" else "cross-entropy")
    return task


@dataclasses.dataclass(frozen=True)
class Importance:
    """Importance of the parts of a block, as means over rows, with natural logarithms."""

    heads: np.ndarray  # absolute gradient of the loss with respect to a gate on each head, float64 [N]
    rows: np.ndarray  # the same for each feed-forward row, float64 [F]
    entropy: np.ndarray  # of the attention of each head, float64 [N]
    distance: np.ndarray  # to the attended tokens, in tokens, float64 [N]; NaN for cross-attention


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
        pairs = zip(kernels, gradients, strict=True)
        by_row = [tf.reduce_sum(kernel * slope, axis=1) for kernel, slope in pairs]
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

    def spec(values: np.ndarray) -> tf.TensorSpec:
        return tf.TensorSpec([None] * values.ndim, values.dtype)

    specs = {name: spec(values) for name, values in batch["features"].items()}
    function = tf.function(measure, autograph=False)
    return function.get_concrete_function(specs, spec(batch["targets"]))


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
