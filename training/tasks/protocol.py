"""The interface of a task: all that differs between classification, matching, tagging and masked language modeling."""

import abc
import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from kmha.config import EncoderConfig
from kmha.document_windows import WindowShape
from training.cli.column_flags import ColumnOverrides
from training.io.example_store import Example, ExampleSet
from training.io.tables import Row
from training.io.types import Columns, Masking, Subset, TrainingSet
from training.tasks.outputs import random_probabilities, row_outputs, row_probabilities
from training.tasks.settings import TaskSettings


@dataclasses.dataclass(frozen=True)
class Defaults:
    """Defaults of settings that depend on the task.

    Attributes:
        dropout: Dropout probability.
        token_dropout: Probability of replacing a token in training; None: depends on the length of the texts.
        embedding_rate: Learning rate of the embedding tables relative to the other weights.
        batches: Training batches in total, in 3 to 20 epochs. Beyond 1,200, validation scores fell on every labeled
            data set of docs/results.md.
        batches_on: The same for a pretrained encoder, in 2 to 6 epochs.
    """

    dropout: float = 0.3
    token_dropout: float | None = None
    embedding_rate: float = 1.0
    batches: int = 1200
    batches_on: int = 800


@dataclasses.dataclass(frozen=True)
class TaskTraits:
    """Properties of a task that data loading and training depend on.

    Attributes:
        baseline_name: Name of the baseline in messages and reports.
        num_texts: Texts per row.
        is_multi_label: Whether a row may have any number of labels.
        has_classes: Whether labels are names. The training rows then have every label, and the split is stratified.
        is_text_and_label: Whether a row is one text and one label column, so that tables are read in blocks.
        keeps_queries_together: Whether all rows of a query are held out together.
        needs_whole_batches: Whether the loss compares each row with all rows of the batch, so that replicas cannot
            share a batch.
        makes_negatives: Whether training adds negative rows, so that positive rows alone are enough.
    """

    baseline_name: str = "baseline"
    num_texts: int = 1
    is_multi_label: bool = False
    has_classes: bool = True
    is_text_and_label: bool = False
    keeps_queries_together: bool = False
    needs_whole_batches: bool = False
    makes_negatives: bool = False


class Task(TaskSettings, abc.ABC):
    """Behavior of a task. A subclass adds the settings of its kind.

    Methods are in the order of a training run: columns, rows, model, loss, predictions, scores.
    """

    @classmethod
    @abc.abstractmethod
    def from_bundle(cls, bundle: Any) -> Self:
        """The task of a trained bundle, to read and to score rows."""

    @property
    @abc.abstractmethod
    def metric(self) -> str:
        """Name of the score that selects the best weights; higher is better."""

    @property
    @abc.abstractmethod
    def traits(self) -> TaskTraits:
        """Properties that data loading and training depend on."""

    @property
    def defaults(self) -> Defaults:
        """Defaults of other settings."""
        return Defaults()

    @property
    def masking(self) -> Masking | None:
        """How tokens are masked; None for tasks with labels."""
        return None

    @property
    def windows(self) -> WindowShape | None:
        """How long texts are divided; None: each text is one sequence."""
        return None

    @property
    def details_for_bundle(self) -> dict[str, Any]:
        """JSON values that the bundle stores, so that the task can score rows later."""
        return {"metric": self.metric}

    @abc.abstractmethod
    def resolve_columns(self, available: Sequence[str] | None, columns: Columns) -> tuple[Self, Columns]:
        """The task and its columns for a file.

        Args:
            available: Names in the file; None: unknown.
            columns: Names from the settings; empty ones are filled in.

        Raises:
            InputError: A column is missing; names the flag.
        """

    @abc.abstractmethod
    def columns_of_file(
        self, trained: Columns, requested: ColumnOverrides, available: Sequence[str]
    ) -> Columns:
        """The columns of a file of rows to score: those requested, else those of training, else the defaults.

        Args:
            trained: Columns of the training rows; empty names are unknown.
            requested: Names from flags; empty ones are open.
            available: Names in the file.

        Raises:
            InputError: A requested column is missing.
        """

    @abc.abstractmethod
    def parse_row(self, row: Row, columns: Columns) -> Sequence[Example]:
        """The examples in a row; raises InputError with the row's place."""

    def resolve_from_data(self, sets: Mapping[str, ExampleSet]) -> Self:
        """The task with all settings that depend on the rows.

        Args:
            sets: All rows, by "train" and other names.

        Raises:
            InputError: The rows do not fit the settings.
        """
        return self

    def output_names(self, labels: Sequence[str], train: Subset) -> list[str]:
        """Names of the model's outputs, from the labels of the training rows."""
        return list(labels)

    def preprocessor(self, parts: Mapping[str, Any]) -> Any:
        """The preprocessor of rows, from the preprocessors of single texts by tokenization."""
        (part,) = parts.values()
        return part

    @abc.abstractmethod
    def build_model(self, encoders: dict[str, EncoderConfig], labels: Sequence[str]) -> Any:
        """A built Keras model.

        Args:
            encoders: The shape of the encoder for each tokenization.
            labels: Names of the outputs.
        """

    def initialize(self, model: Any, source: Any) -> None:
        """Sets the weights of a built model that follow from the training rows.

        Args:
            model: A built model.
            source: Batches of the training rows with their targets and weights.
        """

    @abc.abstractmethod
    def targets(self, part: Subset, labels: Sequence[str]) -> np.ndarray:
        """Targets of the loss, [R, …]."""

    def training_set(self, part: Subset, labels: Sequence[str], seed: int) -> TrainingSet:
        """The rows to train on with targets and weights, from the training rows."""
        return TrainingSet(part.rows, self.targets(part, labels), np.ones(len(part.rows), np.float32))

    def forward(self, model: Any, features: Any) -> Any:
        """The input of the loss, in training."""
        return model(features, training=True)

    @abc.abstractmethod
    def row_losses(self, targets: Any, outputs: Any) -> Any:
        """Loss of each row, float32 [B]."""

    def gather_outputs(self, num_outputs: int, source: Any, outputs: Iterable[tuple[Any, Any]]) -> np.ndarray:
        """The model's outputs for all rows: logits float32 [R, C], of a tagger scores of all words float32 [N, K].

        Args:
            num_outputs: C or K.
            source: The rows.
            outputs: (plan, outputs) for each batch.
        """
        return row_outputs(num_outputs, source, outputs)

    def postprocessor(self, model: Any) -> Callable[[Any, Any], Any]:
        """Turns a model's outputs into predictions: probabilities float32 [R, C], unless a task has others.

        Args:
            model: A built model.

        Returns:
            A function of a source and of (plan, outputs) for each batch of its rows.
        """
        return functools.partial(row_probabilities, model)

    def dummy_predictions(self, model: Any, part: Subset) -> Any:
        """Random predictions, to check that the metric is defined for the rows of a part."""
        return random_probabilities(model, len(part.rows))

    def tune_thresholds(self, part: Subset, labels: Sequence[str], predictions: Any, /) -> dict[str, Any]:
        """Decision thresholds, chosen on validation rows: JSON values for the bundle, empty without thresholds."""
        return {}

    @abc.abstractmethod
    def scores(
        self,
        part: Subset,
        labels: Sequence[str],
        predictions: Any,
        thresholds: dict[str, Any],
        /,
        intervals: bool = False,
    ) -> dict[str, Any]:
        """Scores of predictions.

        Args:
            part: The rows.
            labels: Names of the model's outputs.
            predictions: Made by `postprocessor`.
            thresholds: Made by `tune_thresholds`.
            intervals: Whether to add bootstrap intervals.
        """

    @abc.abstractmethod
    def baseline(
        self, train: Subset, validation: Subset, evaluated: Subset, labels: Sequence[str], seed: int
    ) -> tuple[str, dict[str, Any]]:
        """Description of the baseline in one line, and its scores on the evaluated rows with intervals."""
