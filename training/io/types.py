"""Plain data that readers, tasks and the trainer share: column names, row subsets, training sets, token masking."""

import dataclasses
from typing import Any

import numpy as np

from training.io.example_store import ExampleSet


@dataclasses.dataclass(frozen=True)
class Columns:
    """Names of the columns that a task reads; an empty name means that there is no such column.

    Args:
        text: Column of the text, of the first text of a pair, or of the anchor of a triplet.
        label: Column of the label.
        separator: Separates the labels of a row that has several.
        text_b: Column of the second text of a pair, or of the positive text of a triplet.
        wrong: Column of the negative text of a triplet.
        query: Column of the query id of a pair.
    """

    text: str
    label: str = ""
    separator: str = "|"
    text_b: str = ""
    wrong: str = ""
    query: str = ""

    @property
    def named(self) -> dict[str, str]:
        """The columns that are set, as JSON values."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value}

    @property
    def required(self) -> tuple[str, ...]:
        """The columns that every file must have."""
        return tuple(filter(None, (self.text, self.text_b, self.wrong, self.label)))

    @property
    def optional(self) -> tuple[str, ...]:
        """The columns that a file may lack."""
        return tuple(filter(None, (self.query,)))


@dataclasses.dataclass(frozen=True)
class Masking:
    """How tokens are masked for masked-language-model training.

    Attributes:
        share: Fraction of the tokens that is masked, in (0, 1).
        whole_word: Whether all tokens of a word are masked together.
        packed: Whether several short texts share a row.
    """

    share: float = 0.15
    whole_word: bool = False
    packed: bool = True


@dataclasses.dataclass(frozen=True)
class TrainingSet:
    """Rows to train on, with their targets and weights.

    Attributes:
        rows: Row numbers, int64 [R]; for pairs the row number of each text, int64 [R, 2].
        targets: Targets of the loss, [R, …].
        weights: Sample weights, float32 [R].
        lists: For a listwise loss: the list that each row belongs to, integers [R]; else None.
    """

    rows: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    lists: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class Subset:
    """Rows of an example set: the training, validation or test rows.

    Attributes:
        examples: The example set.
        rows: Row numbers, integers [R].
        source: Batches of their tokens, for a baseline that counts tokens; else None.
    """

    examples: ExampleSet
    rows: np.ndarray
    source: Any = None

    def texts(self, field: int = 0) -> list[str]:
        """The texts of all rows; of pairs the first (0) or the second (1)."""
        return self.examples.read_texts(self.rows, field)
