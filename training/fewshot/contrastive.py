"""The contrastive stage: moves the vectors of texts with the same label together, those of others apart."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from kmha.features import PADDING_MASK
from training.cli.exceptions import TrainingDiverged
from training.config.config import ResolvedConfig
from training.data.inputs import Source
from training.engine.optimizer import AdamW
from training.engine.train_step import TrainingStep
from training.runtime.cpu_sharding import num_shards
from training.runtime.memory_estimate import available_bytes, check_memory, encoder_configs
from training.runtime.mixed_precision import LossScale
from training.runtime.resource_usage import count_trainable_weights
from training.runtime.traced import trace_once
from training.tasks.protocol import Task

# Chosen on training rows of trec, ag_news and sst2; see docs/decisions/016-few-labels.md.
# Rows of a batch: two of each label, within these limits, and fewer if texts are long.
BATCH_ROWS, MAX_BATCH_ROWS, MIN_BATCH_ROWS = 16, 32, 4
BATCH_TOKENS = 8192
# Per row of a batch (Goyal et al. 2017, arXiv:1706.02677).
LEARNING_RATE = 5e-5 / BATCH_ROWS
WARMUP_FRACTION = 0.1
# Batches of a training from the initial weights: as many as make 20 passes over the rows, within these limits. They are
# counted as if each had the rows above; with 3, 5, 6 or 7 labels they have up to four fewer.
PASSES, MIN_STEPS, MAX_ROWS_READ = 20, 10, 9600
# Without a fold: as many as make 10 passes, at up to twice the learning rate, but with fewer labeled rows than these 5,
# at up to four times.
FEW_ROWS = 100
FOLD_PASSES, FOLD_PASSES_OF_FEW, FOLD_MIN_STEPS = 10, 5, 5
# A batch is encoded in so many parts of similar lengths, which are padded less, if that saves so many tokens in 20
# passes over the rows, and else in a part for each shard. Each part takes longer to start.
PARTS, MIN_SAVED_TOKENS = 4, 10_000
# Of the weights, during trainings: gradients, and the mean of the folds.
NEW_COPIES = 2


class ContrastiveStage:
    """Trains the encoder of a model several times, from the same initial weights or from given ones.

    Args:
        task: The task of the model.
        model: A built model with pretrained weights; its head is not trained.
        source: All rows. Their targets are read at each training.
        rows: Labeled rows.
        config: All settings; with those that depend on the data.
    """

    def __init__(self, task: Task, model: Any, source: Source, rows: int, config: ResolvedConfig):
        self._task, self._model, self._source = task, model, source
        self._seed = config.train.seed
        self._longest = source.batch_plan(np.array([source.lengths.argmax()]))
        most = max(MIN_BATCH_ROWS, BATCH_TOKENS // self._longest.row_tokens)
        self._batch_rows = min(most, int(np.clip(2 * model.num_labels, BATCH_ROWS, MAX_BATCH_ROWS)))
        self.variables = [variable.value for variable in model.trainable_variables]
        self._initial = [variable.numpy() for variable in self.variables]
        self._steps, self._peak = (tf.Variable(tf.constant(1.0), trainable=False) for _ in range(2))
        self._optimizer = AdamW(self.variables, self._learning_rate, weight_decay=0.0)
        self.step = TrainingStep(
            model,
            functools.partial(task.contrastive_losses, num_labels=model.num_labels),
            self._optimizer,
            tf.distribute.get_strategy(),
            loss_scale=LossScale() if config.precision == "float16" else None,
            forward=self._outputs,
        )
        self._encode = trace_once(lambda features: task.contrastive_outputs(model, features))
        self._fold_passes = FOLD_PASSES_OF_FEW if rows < FEW_ROWS else FOLD_PASSES
        self._parts = 1
        if task.traits.num_texts == 1 and source.windows is None:
            saved = saved_tokens(source.lengths, self._batch_rows) * self.num_steps(rows)
            self._parts = PARTS if saved >= MIN_SAVED_TOKENS else num_shards()

    def _outputs(self, features: dict[str, tf.Tensor]) -> tf.Tensor:
        """The input of the loss; rows of a batch in parts are in the order of their lengths."""
        if self._parts == 1:
            return self._encode(features)
        lengths = tf.reduce_sum(features[PADDING_MASK], axis=1)
        outputs = []
        for first, last in itertools.pairwise(part_borders(tf.size(lengths), self._parts)):
            # At least 1: a part of a few rows may be empty.
            longest = tf.maximum(1, tf.reduce_max(lengths[first:last]))
            part = {name: values[first:last, :longest] for name, values in features.items()}
            outputs.append(self._encode(part))
        return tf.concat(outputs, axis=0)

    def _learning_rate(self, step: tf.Tensor) -> tf.Tensor:
        """Linear warm-up, then linear decay to 0."""
        step = tf.cast(step, tf.float32)
        warmup = tf.maximum(1.0, WARMUP_FRACTION * self._steps)
        left = (self._steps - step) / tf.maximum(1.0, self._steps - warmup)
        return self._peak * tf.clip_by_value(tf.minimum((step + 1.0) / warmup, left), 0.0, 1.0)

    def num_steps(self, rows: int, passes: int = PASSES, least: int = MIN_STEPS) -> int:
        """Batches of a training on a number of rows."""
        return max(least, min(passes * rows, MAX_ROWS_READ) // self._batch_rows)

    def fold_steps(self, rows: int) -> int:
        """Batches of a training without a fold, on a number of rows."""
        return self.num_steps(rows, self._fold_passes, FOLD_MIN_STEPS)

    def fold_rate_factor(self, rows: int) -> float:
        """What multiplies the learning rate without a fold: 4 or 2, or less where the number of batches has a limit."""
        steps = self.num_steps(rows, PASSES, FOLD_MIN_STEPS)
        return min(PASSES / self._fold_passes, steps / self.fold_steps(rows))

    def reset(self, weights: Sequence[Any] | None = None) -> None:
        """Sets the weights, float32, back to those before the first training, or to others."""
        for variable, value in zip(self.variables, weights or self._initial, strict=True):
            variable.assign(value)

    def check_memory(self) -> None:
        """Raises InputError if the longest batch, the gradients and the mean of the folds do not fit into memory."""
        # On a GPU TensorFlow's own out-of-memory error has the details.
        if tf.config.list_logical_devices("GPU"):
            return
        largest = dataclasses.replace(self._longest, rows=np.repeat(self._longest.rows, self._batch_rows))
        configs, count = encoder_configs(self._model), count_trainable_weights(self._model)
        check_memory(configs, count, [largest], available_bytes(), NEW_COPIES, "--text.max-length")

    def _start(
        self, steps: int, rate_factor: float, done: int = 0, weights: Sequence[Any] | None = None
    ) -> None:
        self._steps.assign(steps)
        self._peak.assign(LEARNING_RATE * self._batch_rows * rate_factor)
        if done:
            return
        self.reset(weights)
        for variable in (self._optimizer.iterations, *self._optimizer.means, *self._optimizer.squares):
            variable.assign(tf.zeros_like(variable))

    def train(
        self,
        rows: np.ndarray,
        steps: int,
        rate_factor: float = 1.0,
        done: int = 0,
        weights: Sequence[Any] | None = None,
    ) -> Iterator[float]:
        """Trains the encoder.

        Args:
            rows: int [R].
            steps: Number of batches.
            rate_factor: Multiplies the learning rate.
            done: Steps that are done: the others follow from the present weights.
            weights: Of the start, float32, in the order of `variables`; None: the initial ones.

        Yields:
            The loss of each step.
        """
        self._start(steps, rate_factor, done, weights)
        random = np.random.default_rng([self._seed, 13])
        targets = self._task.few_label_targets(self._source.targets[rows])
        memberships = label_memberships(targets, self._model.num_labels)
        batches = sample_batches(memberships, self._batch_rows, steps, random)
        for chosen in itertools.islice(batches, done, None):
            if self._parts > 1:
                chosen = chosen[np.argsort(self._source.lengths[rows[chosen]], kind="stable")]
            batch = self._source.batch(self._source.batch_plan(rows[chosen]))
            # Labels are about equally frequent in a batch already; class weights would count rare ones twice.
            batch["weights"] = (batch["weights"] > 0).astype(np.float32)
            sums = self.step(batch)
            loss = float(sums["loss"]) / max(float(sums["weight"]), 1e-12)
            if not math.isfinite(loss):
                raise TrainingDiverged(f"the contrastive loss is {loss}", "try --fewshot probe")
            yield loss


def part_borders(size: Any, parts: int) -> list[Any]:
    """Where the parts of a batch begin and the last one ends; from the number of its rows, an int or int32 []."""
    return [part * size // parts for part in range(parts + 1)]


def saved_tokens(lengths: np.ndarray, size: int) -> float:
    """How many tokens fewer a random batch has in parts, on average.

    Args:
        lengths: Of the texts, int [R].
        size: Rows of a batch.
    """
    drawn = np.sort(np.random.default_rng(0).choice(lengths, (1_000, size)), axis=1)
    borders = np.array(part_borders(size, PARTS))
    return float((drawn[:, -1] * size - drawn[:, borders[1:] - 1] @ np.diff(borders)).mean())


def label_memberships(targets: np.ndarray, outputs: int) -> np.ndarray:
    """0 or 1 for each row and label, int32 [R, C], from label ids, int [R], or from 0 or 1, [R, C]."""
    return targets if targets.ndim == 2 else np.eye(outputs, dtype=np.int32)[targets]


def sample_batches(
    memberships: np.ndarray, size: int, steps: int, random: np.random.Generator
) -> Iterator[np.ndarray]:
    """Yields batches of distinct rows in which labels are about equally frequent.

    Args:
        memberships: 0 or 1 for each row and label, [R, C].
        size: Rows of a batch, fewer if there are fewer rows.
        steps: Number of batches.
        random: Source of the choice.

    Yields:
        Row numbers, int64 [B].
    """
    rows_of = [rows for rows in map(np.flatnonzero, memberships.T) if len(rows)]
    without = np.flatnonzero(memberships.sum(axis=1) == 0)
    if len(without):
        rows_of.append(without)
    # Two rows of a label or more, so that a batch has pairs with a common label.
    labels = max(1, min(len(rows_of), size // 2))
    per_label = max(2, size // labels)
    for _ in range(steps):
        chosen = random.choice(len(rows_of), labels, replace=False)
        parts = [
            random.choice(rows_of[label], min(per_label, len(rows_of[label])), replace=False)
            for label in chosen
        ]
        yield np.unique(np.concatenate(parts))
