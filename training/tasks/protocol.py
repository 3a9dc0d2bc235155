"""What the fit needs of a task, so that it never branches on one."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from kmha.document_windows import WindowShape
from training.data.types import Columns, Masking, Subset, TrainingSet
from training.io.example_store import Example, ExampleSet
from training.io.tables import Row

if TYPE_CHECKING:
    import keras

    from kmha.config import EncoderConfig


@dataclasses.dataclass(frozen=True)
class Defaults:
    """What settings are where nobody gave them.

    Attributes:
        dropout: Probability of dropping a value.
        token_dropout: Probability of replacing a token in training; None: by the length of the texts.
        embedding_rate: Rate of the embedding tables over that of the rest.
        batches: To train on in all, in from 3 to 20 epochs; past 1,200 the validation scores of every data set in
            docs/results.md that has labels fell again.
        batches_on: Of an encoder that starts from a checkpoint, in from 2 to 6 epochs.
    """

    dropout: float = 0.3
    token_dropout: float | None = None
    embedding_rate: float = 1.0
    batches: int = 1200
    batches_on: int = 800


class Task(Protocol):
    """A job that a model can learn from rows of text."""

    @property
    def metric(self) -> str:
        """Name of the score that picks the best weights; higher is better."""
        ...

    @property
    def kept(self) -> dict[str, Any]:
        """What of the task a bundle keeps beside its model, to judge rows later; JSON values."""
        ...

    @property
    def baseline_name(self) -> str:
        """What the baseline is called."""
        ...

    @property
    def defaults(self) -> Defaults:
        """Settings that follow from the task."""
        ...

    @property
    def num_texts(self) -> int:
        """Texts of a row."""
        ...

    @property
    def several_labels(self) -> bool:
        """Whether a row may have any number of labels."""
        ...

    @property
    def has_classes(self) -> bool:
        """Whether labels are names, of which each must be learnt and held out in its share."""
        ...

    @property
    def holds_out_queries(self) -> bool:
        """Whether rows of one query are held out together."""
        ...

    @property
    def labels_alone(self) -> bool:
        """Whether a row is one text, and its label column alone decides its labels."""
        ...

    @property
    def whole_batches(self) -> bool:
        """Whether the loss compares each row with all others of its batch, which replicas then cannot share."""
        ...

    @property
    def makes_wrong_rows(self) -> bool:
        """Whether training finds wrong rows by itself, so that right ones alone can be learnt from."""
        ...

    @property
    def masking(self) -> Masking | None:
        """How tokens are hidden that the model must find; None where rows say by themselves what is wanted."""
        ...

    @property
    def windows(self) -> WindowShape | None:
        """How the model divides long texts; None where it reads every text whole."""
        ...

    def resolve(self, available: Sequence[str] | None, columns: Columns) -> tuple["Task", Columns]:
        """The task and its columns once the names in the data are known (None: unknown)."""
        ...

    def examples(self, row: Row, columns: Columns) -> Sequence[Example]:
        """The examples in a row; raises InputError naming the row's place."""
        ...

    def settled(self, sets: Mapping[str, ExampleSet]) -> "Task":
        """The task once all rows have been read, by "train" and others; raises InputError where they cannot be used."""
        ...

    def outputs(self, labels: Sequence[str], train: Subset) -> list[str]:
        """Names of the model's outputs, from the labels of the training rows."""
        ...

    def tokenizations(self, defaults: str) -> tuple[str, ...]:
        """The ways in which texts are cut, given the usual one."""
        ...

    def preprocessor(self, parts: Mapping[str, Any]) -> Any:
        """What makes features of rows, from preprocessors of single texts by the way they cut."""
        ...

    def encoder(self, config: "EncoderConfig") -> "EncoderConfig":
        """The encoder's shape, from the one that the settings describe."""
        ...

    def build(self, encoders: "dict[str, EncoderConfig]", labels: Sequence[str]) -> "keras.Model":
        """A built model of one encoder a granularity, with an output for each label."""
        ...

    def forward(self, model: "keras.Model", features: Any) -> Any:
        """What the loss reads of the model, in training."""
        ...

    def training_set(self, part: Subset, labels: Sequence[str], seed: int) -> TrainingSet:
        """What to train on, from the training rows."""
        ...

    def targets(self, part: Subset, labels: Sequence[str]) -> np.ndarray:
        """What the loss compares with, [R, …]."""
        ...

    def prepare(self, model: "keras.Model", source: Any) -> None:
        """Sets what of a built model the training rows alone decide; `source` has their targets, weights and ids."""
        ...

    def row_losses(self, targets: Any, outputs: Any) -> Any:
        """Loss of each example, float32 [B]."""
        ...

    def reader(self, model: "keras.Model") -> Callable[[Any, Any], Any]:
        """What turns a model's outputs into answers, mostly probabilities float32 [R, C].

        Args:
            model: A built model.

        Returns:
            A function of a source and of the outputs: of each batch of its rows the plan and what the model gave.
        """
        ...

    def guesses(self, model: "keras.Model", part: Subset) -> Any:
        """What a model that knows nothing would say of the rows of a part."""
        ...

    def decision(self, part: Subset, labels: Sequence[str], answers: Any, /) -> dict[str, Any]:
        """What more it takes to decide by answers, chosen on validation rows; JSON values for the bundle."""
        ...

    def scores(
        self,
        part: Subset,
        labels: Sequence[str],
        answers: Any,
        decision: dict,
        /,
        intervals: bool = False,
    ) -> dict[str, Any]:
        """Scores of the answers, by the names in DESIGN."""
        ...

    def baseline(
        self, train: Subset, validation: Subset, evaluated: Subset, labels: Sequence[str], seed: int
    ) -> tuple[str, dict[str, Any]]:
        """One line that says what the baseline is, and its scores on the judged rows."""
        ...
