"""Evaluates a model on tokenized rows: predictions, raw outputs, and validation scores."""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np

from kmha.bundle.bundle import Bundle
from kmha.errors import InputError
from training.data.inputs import Source
from training.io.examples import Subset
from training.runtime.cpu_sharding import sharded_predict_function
from training.tasks.protocol import Task

BATCH_TOKENS = 8192
MAX_ROWS = 512


@dataclasses.dataclass
class Evaluator:
    """Computes the outputs of a model batch by batch on one device, and scores them.

    Args:
        model: A built model.
        task: Converts outputs to predictions and scores them.
        labels: Names in the order of the model's outputs.
        padded_lengths: The padded lengths of the training rows; longer rows get additional lengths.
    """

    model: keras.Model
    task: Task
    labels: list[str]
    padded_lengths: list[Any]

    def __post_init__(self):
        self._read = self.task.postprocessor(self.model)
        self._logits = sharded_predict_function(self.model)

    @classmethod
    def for_bundle(
        cls, bundle: Bundle, task: Task, source: Source, labels: list[str] | None = None
    ) -> "Evaluator":
        """The evaluator of a bundle's model for the rows of a source, with the bundle's labels by default."""
        lengths = source.buckets([])
        return cls(bundle.model, task, bundle.labels if labels is None else labels, lengths)

    def predict(self, source: Source) -> Any:
        """The task's predictions in the order of the source's rows."""
        return self._read(source, self._outputs(source))

    def raw_outputs(self, source: Source) -> np.ndarray:
        """The model's outputs: logits of rows float32 [R, C], or a tagger's scores of all words float32 [N, K]."""
        return self._gather(source, self._outputs(source))

    def raw_and_predictions(self, source: Source) -> tuple[np.ndarray, Any]:
        """The results of `raw_outputs` and `predict` from one pass of the model."""
        outputs = list(self._outputs(source))
        return self._gather(source, outputs), self._read(source, outputs)

    def _gather(self, source: Source, outputs: Iterable[tuple[Any, Any]]) -> np.ndarray:
        return self.task.gather_outputs(len(self.labels), source, outputs)

    def _outputs(self, source: Source) -> Iterator[tuple[Any, Any]]:
        """The plan and the model's outputs of each batch."""
        plans = source.plans(self.padded_lengths, BATCH_TOKENS, MAX_ROWS, rng=None)
        for plan, batch in zip(plans, source.dataset(plans), strict=True):
            yield plan, self._logits(batch["features"])

    def check_metric_is_defined(self, part: Subset) -> None:
        """Raises InputError if the task's metric is undefined for the validation rows, before training."""
        self._scores(part, self.task.dummy_predictions(self.model, part))

    def validate(self, source: Source, part: Subset) -> dict[str, float]:
        """Loss and the task's metric, for the end of an epoch."""
        scores = self._scores(part, self.predict(source))
        return {name: float(scores[name]) for name in ("loss", self.task.metric)}

    def _scores(self, part: Subset, predictions: Any) -> dict[str, Any]:
        decision = self.task.tune_thresholds(part, self.labels, predictions)
        scores: dict[str, Any] = self.task.scores(part, self.labels, predictions, decision)
        if scores[self.task.metric] is None:
            raise InputError(
                f"{part.examples.origin}: expected validation rows with a defined {self.task.metric},"
                f" got {len(part.rows):,} without"
            )
        return scores
