"""Labeled rows on which the importance of heads is measured."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from kmha.bundle.bundle import Bundle
from kmha.bundle.manifest import CLASSIFY, MATCH, TAG
from kmha.errors import InputError
from kmha.features import WORD_MASK
from training.data.inputs import Inputs, Source, cut_parts
from training.evaluation.bundle_evaluation import read_labelled_rows
from training.evaluation.evaluator import Evaluator
from training.io.examples import ColumnOverrides, Subset, label_ids
from training.tasks.protocol import Task

_NAME = "measured"


@dataclasses.dataclass(frozen=True)
class EvaluationRows:
    """Tokenized rows of a file, and a bundle that predicts them."""

    bundle: Bundle
    task: Task
    inputs: Inputs

    @classmethod
    def read(cls, bundle: Bundle, path: Path, columns: ColumnOverrides, folder: Path) -> "EvaluationRows":
        """Reads all rows of a file.

        Raises:
            InputError: The file or a row of it is invalid, or it has no rows.
        """
        task, part = read_labelled_rows(bundle, path, columns, folder)
        inputs = cut_parts(bundle.preprocessor, {_NAME: part}, folder, windows=task.windows)
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
        return str(self.bundle.details.get("metric", self.task.metric))

    def with_bundle(self, bundle: Bundle) -> "EvaluationRows":
        """The same rows for a bundle with the same tokenizer."""
        return dataclasses.replace(self, bundle=bundle)

    def sample(self, most: int, seed: int) -> "EvaluationRows":
        """Draws random rows among those whose label the model has.

        Raises:
            InputError: The model has none of their labels.
        """
        part, bundle = self.part, self.bundle
        rows = part.rows
        if (bundle.task == CLASSIFY and not bundle.multi_label) or (
            bundle.task == MATCH and bundle.model.target == "classes"
        ):
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
