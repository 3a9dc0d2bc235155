"""The contrastive stage: moves the vectors of texts with the same label together, those of others apart."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from training.data.length_buckets import BatchPlan
from training.engine.optimizer import AdamW
from training.engine.train_step import TrainingStep
from training.losses.contrastive import cosine_distance

# Chosen on training rows of trec, ag_news and sst2; see docs/decisions/016-few-labels.md.
BATCH_ROWS = 32
BATCH_TOKENS = 4096
LEARNING_RATE = 1e-4
WARMUP_FRACTION = 0.1


class ContrastiveStage:
    """Trains the vectors of a classifier, from the same initial weights each time.

    Args:
        model: A built `TextClassifier` with pretrained weights; its head is not trained.
        source: All training rows.
        memberships: 0 or 1 for each row and label, [R, C].
        seed: Random seed of the batches.
    """

    def __init__(self, model: Any, source: Any, memberships: np.ndarray, seed: int):
        self._source, self._memberships, self._seed = source, memberships, seed
        self._variables = [variable.value for variable in model.trainable_variables]
        self._initial = [variable.numpy() for variable in self._variables]
        self._steps = tf.Variable(tf.constant(1.0), trainable=False)
        self._optimizer = AdamW(self._variables, self._learning_rate)
        self._step = TrainingStep(
            model,
            cosine_distance,
            self._optimizer,
            tf.distribute.get_strategy(),
            forward=lambda features: model.pooled_vectors(features, training=True),
        )

    def _learning_rate(self, step: tf.Tensor) -> tf.Tensor:
        """Linear warm-up, then linear decay to 0."""
        step = tf.cast(step, tf.float32)
        warmup = tf.maximum(1.0, WARMUP_FRACTION * self._steps)
        left = (self._steps - step) / tf.maximum(1.0, self._steps - warmup)
        return LEARNING_RATE * tf.clip_by_value(tf.minimum((step + 1.0) / warmup, left), 0.0, 1.0)

    def reset(self) -> None:
        """Sets the weights back to those before the first training."""
        for variable, value in zip(self._variables, self._initial, strict=True):
            variable.assign(value)

    def train(self, rows: np.ndarray, steps: int) -> Iterator[float]:
        """Trains on some rows, int [R], from the initial weights; yields the loss of each step."""
        self.reset()
        self._steps.assign(steps)
        for variable in (self._optimizer.iterations, *self._optimizer.means, *self._optimizer.squares):
            variable.assign(tf.zeros_like(variable))
        random = np.random.default_rng([self._seed, 13])
        limit = max(4, BATCH_TOKENS // int(self._source.lengths[rows].max()))
        for chosen in sample_batches(self._memberships[rows], min(BATCH_ROWS, limit), steps, random):
            batch_rows = rows[chosen]
            length = int(self._source.lengths[batch_rows].max())
            plan = BatchPlan(batch_rows, length, len(batch_rows), self._source.windows)
            sums = self._step(self._source.batch(plan))
            yield float(sums["loss"]) / float(sums["weight"])


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
