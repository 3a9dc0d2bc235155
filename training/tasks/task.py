"""What the fit needs of a task, so that it never branches on one."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from training.examples import Example, ExampleSet
from training.records import Row

if TYPE_CHECKING:
    import keras

    from kmha.config import EncoderConfig


@dataclasses.dataclass(frozen=True)
class Columns:
    """Names of the columns a task reads, and what separates several labels in one."""

    text: str
    label: str
    separator: str


@dataclasses.dataclass(frozen=True)
class Part:
    """Some rows of a set: those to train on, to validate on, or to test on."""

    examples: ExampleSet
    rows: np.ndarray

    def texts(self) -> list[str]:
        """The texts of all rows."""
        return self.examples.read_texts(self.rows)


class Task(Protocol):
    """A job that a model can learn from rows of text."""

    @property
    def metric(self) -> str:
        """Name of the score that picks the best weights; higher is better."""
        ...

    @property
    def several_labels(self) -> bool:
        """Whether a row may have any number of labels."""
        ...

    def resolve(self, available: Sequence[str] | None, columns: Columns) -> tuple["Task", Columns]:
        """The task and its columns once the names in the data are known (None: unknown)."""
        ...

    def example(self, row: Row, columns: Columns) -> Example:
        """The example in a row; raises InputError naming the row's place."""
        ...

    def build(self, encoder: "EncoderConfig", num_labels: int) -> "keras.Model":
        """A built model."""
        ...

    def targets(self, part: Part, labels: Sequence[str]) -> np.ndarray:
        """What the loss compares with, [R, …]."""
        ...

    def weights(self, targets: np.ndarray) -> np.ndarray:
        """How much each training row counts, float32 [R]."""
        ...

    def prepare(self, model: "keras.Model", targets: np.ndarray) -> None:
        """Sets what of a built model the training targets alone decide."""
        ...

    def loss(self, targets: Any, outputs: Any) -> Any:
        """Loss of each example, float32 [B]."""
        ...

    def decision(self, part: Part, labels: Sequence[str], probabilities: np.ndarray) -> dict[str, Any]:
        """What turns probabilities into answers, chosen on validation rows; JSON values for the bundle."""
        ...

    def scores(
        self,
        part: Part,
        labels: Sequence[str],
        probabilities: np.ndarray,
        decision: dict,
        intervals: bool = False,
    ) -> dict[str, Any]:
        """Scores of the probabilities, by the names in DESIGN."""
        ...

    def baseline(
        self, train: Part, validation: Part, judged: Part, labels: Sequence[str], seed: int
    ) -> tuple[str, dict[str, Any]]:
        """One line that says what the linear baseline is, and its scores on the judged rows."""
        ...
