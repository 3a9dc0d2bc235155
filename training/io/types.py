"""Data classes shared by readers, tasks and the trainer."""

import dataclasses
from typing import Any

import numpy as np

from training.io.example_store import ExampleSet


@dataclasses.dataclass(frozen=True)
class Columns:
    """Names of the columns that a task reads; an empty name means no such column.

    Args:
        text: Column of the text, of the first text of a pair, or of the anchor of a triplet.
        label: Column of the label.
        separator: Separator between several labels of a row.
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
        """Columns that every file must have."""
        return tuple(filter(None, (self.text, self.text_b, self.wrong, self.label)))

    @property
    def optional(self) -> tuple[str, ...]:
        """Columns that a file may lack."""
        return tuple(filter(None, (self.query,)))


@dataclasses.dataclass(frozen=True)
class Masking:
    """Token masking for masked language modeling.

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
        targets: Loss targets, [R, …].
        weights: Sample weights, float32 [R].
        lists: List id of each row for a listwise loss, integers [R]; else None.
    """

    rows: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    lists: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class Subset:
    """The training, validation or test rows of an example set.

    Attributes:
        examples: The example set.
        rows: Row numbers, integers [R].
        source: Token batches, for a baseline that counts tokens; else None.
    """

    examples: ExampleSet
    rows: np.ndarray
    source: Any = None

    def texts(self, field: int = 0) -> list[str]:
        """The texts of all rows; for pairs, the first (0) or the second (1)."""
        return self.examples.read_texts(self.rows, field)
