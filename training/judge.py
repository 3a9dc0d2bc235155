"""A model's probabilities over a part of the data, and the scores they get."""

import dataclasses
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kmha.bundle import Bundle
from training.buckets import plan_batches
from training.pipeline import BatchSource
from training.sources import file_source, read_examples
from training.tasks.classify import ClassifyTask
from training.tasks.task import Columns, Part, Task

BATCH_TOKENS = 8192
MOST_ROWS = 512
CHUNK_ROWS = 4096


@dataclasses.dataclass
class Judge:
    """Computes probabilities batch by batch, on one device.

    Args:
        model: A built model with `probabilities`.
        task: Scores them.
        labels: Names in the order of the model's outputs.
        padded_lengths: Ascending lengths to pad to; longer rows get a length of their own.
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
        longest = int(source.lengths.max(initial=0))
        # Rows that training never saw may be longer than all that it did.
        lengths = self.padded_lengths + [longest] * (longest > self.padded_lengths[-1])
        plans = plan_batches(source.lengths, lengths, BATCH_TOKENS, MOST_ROWS, rng=None)
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


def bundle_scores(
    bundle: Bundle, path: Path, text_column: str, label_column: str, intervals: bool, folder: Path
) -> dict[str, Any]:
    """Scores of a bundle on a file.

    Args:
        bundle: A trained bundle.
        path: Labelled rows.
        text_column: Empty for the name used in training.
        label_column: Likewise.
        intervals: Whether to add bootstrap intervals.
        folder: Where the rows are kept meanwhile.

    Raises:
        InputError: The file or a row of it cannot be used.
    """
    trained = Columns(**bundle.details["columns"])
    columns = Columns(text_column or trained.text, label_column or trained.label, trained.separator)
    task = ClassifyTask(multi_label=bundle.multi_label)
    examples = read_examples(file_source(path), task, columns, folder)
    part = Part(examples, np.arange(len(examples)))
    chunks = [part.rows[i : i + CHUNK_ROWS] for i in range(0, len(part.rows), CHUNK_ROWS)]
    probabilities = np.concatenate([bundle.probabilities(examples.read_texts(chunk)) for chunk in chunks])
    return task.scores(part, bundle.labels, probabilities, {"thresholds": bundle.thresholds}, intervals)
