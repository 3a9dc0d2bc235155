"""Labelled rows that heads are measured on, as a run's model reads them."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from kmha.bundle.bundle import Bundle
from kmha.bundle.manifest import CLASSIFY, MATCH, TAG
from kmha.errors import InputError
from kmha.features import WORD_MASK
from training.cli.column_flags import ColumnOverrides
from training.data.inputs import Inputs, Source, cut_parts
from training.data.types import Subset
from training.evaluation.bundle_evaluation import read_labelled_rows
from training.evaluation.evaluator import Evaluator
from training.io.example_store import label_ids
from training.tasks.protocol import Task

_NAME = "measured"


@dataclasses.dataclass(frozen=True)
class MeasuredRows:
    """Rows of a file, cut once, and a bundle that is asked about them.

    Attributes:
        bundle: A trained one.
        task: Reads, scores and weighs the rows.
        inputs: The rows and their tokens.
    """

    bundle: Bundle
    task: Task
    inputs: Inputs

    @classmethod
    def read(cls, bundle: Bundle, path: Path, given: ColumnOverrides, folder: Path) -> "MeasuredRows":
        """All rows of a file.

        Args:
            bundle: A trained bundle.
            path: Labelled rows.
            given: Names of columns that are others than in training.
            folder: Where the rows are kept meanwhile.

        Raises:
            InputError: The file or a row of it cannot be used, or it has none.
        """
        task, part = read_labelled_rows(bundle, path, given, folder)
        inputs = cut_parts(bundle.preprocessor, {_NAME: part}, folder, windows=task.windows)
        return cls(bundle, _weighing(task), inputs)

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
        """The score that the run's weights were chosen by."""
        return str(self.bundle.details.get("metric", self.task.metric))

    def of(self, bundle: Bundle) -> "MeasuredRows":
        """The same rows for a bundle that cuts texts in the same way."""
        return dataclasses.replace(self, bundle=bundle)

    def drawn(self, most: int, seed: int) -> "MeasuredRows":
        """Some of the rows, at random, of those whose label the model knows.

        Args:
            most: How many; 0: all.
            seed: Draws them.

        Raises:
            InputError: The model knows no label of them.
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

    def evaluated(self) -> "EvaluatedRows":
        """What asks the bundle's model about the rows, as its weights are then."""
        source = self.source
        return EvaluatedRows(self, source, Evaluator.for_bundle(self.bundle, self.task, source))

    def outputs(self, features: Any) -> tuple[Any, dict[str, Any]]:
        """What the loss reads of the model, and its attention weights by name; without dropout."""
        model = self.bundle.model
        outputs, weights = model(features, return_attention_weights=True, training=False)
        named = weights if isinstance(weights, dict) else {"attention": weights}
        if self.bundle.task == TAG:
            return model.potentials(outputs, features[WORD_MASK]), named
        return outputs, named


@dataclasses.dataclass(frozen=True)
class EvaluatedRows:
    """Rows, their tokens, and what asks a model about them."""

    rows: MeasuredRows
    source: Source
    evaluator: Evaluator

    def scores(self) -> dict[str, float]:
        """Loss, and the metric where the rows define it, of the model as it is now."""
        rows, bundle = self.rows, self.rows.bundle
        decision = {} if bundle.thresholds is None else {"thresholds": bundle.thresholds}
        found = rows.task.scores(rows.part, bundle.labels, self.evaluator.predict(self.source), decision)
        return {name: found[name] for name in ("loss", rows.metric) if found.get(name) is not None}


def _weighing(task: Any) -> Any:
    """The task with the plain loss of its answers: no smoothing, no margin, no other rows."""
    if hasattr(task, "label_smoothing"):
        task = dataclasses.replace(task, label_smoothing=0.0)
    if hasattr(task, "loss"):
        task = dataclasses.replace(task, loss="squares" if task.target == "graded" else "cross-entropy")
    return task
