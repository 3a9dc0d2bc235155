"""A model's probabilities over a part of the data, and the scores they get."""

import dataclasses
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from training.buckets import plan_batches
from training.pipeline import BatchSource
from training.tasks.task import Part, Task

BATCH_TOKENS = 8192
MOST_ROWS = 512


@dataclasses.dataclass
class Judge:
    """Computes probabilities batch by batch, on one device.

    Args:
        model: A built model with `probabilities`.
        task: Scores them.
        labels: Names in the order of the model's outputs.
        padded_lengths: Ascending lengths to pad to.
    """

    model: keras.Model
    task: Task
    labels: list[str]
    padded_lengths: list[int]

    def __post_init__(self):
        self._logits = tf.function(
            lambda features: self.model(features, training=False), reduce_retracing=True
        )

    def probabilities(self, source: BatchSource) -> np.ndarray:
        """float32 [R, C], in the order of the source's rows."""
        plans = plan_batches(source.lengths, self.padded_lengths, BATCH_TOKENS, MOST_ROWS, rng=None)
        result = np.zeros((len(source.rows), len(self.labels)), np.float32)
        for plan, batch in zip(plans, source.dataset(plans), strict=True):
            logits = self._logits(batch["features"])
            result[plan.rows] = self.model.probabilities(logits).numpy()[: len(plan.rows)]
        return result

    def validate(self, source: BatchSource, part: Part) -> dict[str, float]:
        """Loss and the task's metric, for the end of an epoch."""
        probabilities = self.probabilities(source)
        decision = self.task.decision(part, self.labels, probabilities)
        scores: dict[str, Any] = self.task.scores(part, self.labels, probabilities, decision)
        return {name: float(scores[name]) for name in ("loss", self.task.metric)}
