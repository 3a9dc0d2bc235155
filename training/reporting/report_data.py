"""What a report is made of: rows that the model has not trained on with what it says of them, and the run around."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kmha.bundle.files import parts_of
from kmha.calibration import Calibration
from training.data.types import Subset
from training.tasks.protocol import Task


@dataclasses.dataclass(frozen=True)
class ScoredSplit:
    """Rows that the model has not trained on, and its answers.

    Attributes:
        name: "validation", "test", or the name of a file.
        part: The rows.
        answers: What the task makes of the model's outputs: probabilities float32 [R, C], `kmha.inference.tagger.TaggedSentences`, or
            `training.metrics.masked_lm.MaskedAnswers`.
    """

    name: str
    part: Subset
    answers: Any


@dataclasses.dataclass(frozen=True)
class ReportData:
    """What a report is made of.

    Attributes:
        name: Of the run.
        kind: The task: "classify", "match", "tag" or "masked-lm".
        task: Reads the rows.
        target: Of a matcher "binary", "classes" or "graded"; else empty.
        labels: Names of the model's outputs.
        thresholds: As of a bundle.
        calibration: That the model has.
        metric: Name of the score that picked the weights.
        asked: The rows, those that are judged last.
        scores: Of the judged rows, with intervals.
        metrics: What metrics.json holds; empty where there is none.
        details: More entries of bundle.json: hashes of the data, columns, what it started from.
        versions: Of packages, by name.
        lengths: Tokens of each text as the model reads it, integers, by part.
        longest: Most tokens that it reads at once.
        train: The training rows; None where they are not at hand.
        command: Commands that make the run again; empty where it is not known.
        files: Bytes of each file of the run, by name.
    """

    name: str
    kind: str
    task: Task
    target: str
    labels: Sequence[str]
    thresholds: Sequence[float] | None
    calibration: Calibration
    metric: str
    asked: Sequence[ScoredSplit]
    scores: dict[str, Any]
    metrics: dict[str, Any]
    details: dict[str, Any]
    versions: dict[str, str]
    lengths: dict[str, np.ndarray]
    longest: int
    train: Subset | None
    command: str
    files: dict[str, int]

    @property
    def evaluated(self) -> ScoredSplit:
        """The rows that the scores are of."""
        return self.asked[-1]

    @property
    def several_labels(self) -> bool:
        """Whether a row may have any number of labels."""
        return self.kind == "classify" and self.task.several_labels

    @property
    def graded(self) -> bool:
        """Whether the model guesses a number."""
        return self.target == "graded"

    @property
    def baseline(self) -> dict[str, Any]:
        """The baseline's scores of the judged rows; empty where there are none."""
        return self._of_the_same_rows("baseline")

    @property
    def teacher(self) -> dict[str, Any]:
        """The teacher's scores of the judged rows; empty where there are none."""
        return self._of_the_same_rows("teacher")

    def _of_the_same_rows(self, name: str) -> dict[str, Any]:
        return self.metrics.get(name, {}) if self.metrics.get("judged_on") == self.evaluated.name else {}


def most_tokens(preprocessor: Any) -> int:
    """The most tokens of a text that a preprocessor of any task keeps, special ones included."""
    return max(part.max_length for part in parts_of(preprocessor).values())


def file_sizes(folder: Path, manifest: dict[str, Any]) -> dict[str, int]:
    """Bytes of each file that a run folder needs to answer, by name."""
    return {name: (folder / name).stat().st_size for name in manifest["files"] if (folder / name).is_file()}
