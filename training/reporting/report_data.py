"""The data of a report: a run, and its predictions for rows that the model was not trained on."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kmha.bundle.bundle import parts_of
from kmha.bundle.manifest import MATCH
from kmha.calibration import Calibration
from training.io.examples import Subset
from training.tasks.protocol import Task


@dataclasses.dataclass(frozen=True)
class ScoredSplit:
    """Rows that the model was not trained on, with its predictions.

    Attributes:
        name: "validation", "test", or the name of a file.
        part: The rows.
        predictions: As the task computes them from the model's outputs: probabilities float32 [R, C],
            `kmha.inference.tagger.TaggedSentences`, or `training.metrics.masked_lm.MaskedPredictions`.
    """

    name: str
    part: Subset
    predictions: Any


@dataclasses.dataclass(frozen=True)
class ReportData:
    """The data of a report.

    Attributes:
        kind: The task: "classify", "match", "tag" or "masked-lm".
        target: Target of a matcher: "binary", "classes" or "graded"; else empty.
        metric: Score by which the weights were selected.
        splits: The scored rows; the last split is the evaluated one.
        metrics: Content of metrics.json; empty without the file.
        details: Other entries of bundle.json: hashes of the data, columns, initial weights.
        lengths: Tokens of each text as the model reads it, integers, by split.
        max_tokens: Most tokens that the model reads at once.
        train: The training rows; None if they are not available.
        command: Command that trains the run again; empty if it is not known.
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
    splits: Sequence[ScoredSplit]
    scores: dict[str, Any]
    metrics: dict[str, Any]
    details: dict[str, Any]
    versions: dict[str, str]
    lengths: dict[str, np.ndarray]
    max_tokens: int
    train: Subset | None
    command: str
    files: dict[str, int]

    @classmethod
    def of_bundle(cls, bundle: Any, manifest: dict[str, Any], folder: Path, **values: Any) -> "ReportData":
        """Reads the attributes that the bundle in a run folder defines; `values` are the others."""
        found = {
            "kind": bundle.task,
            "target": bundle.model.target if bundle.task == MATCH else "",
            "labels": bundle.labels,
            "thresholds": bundle.thresholds,
            "calibration": Calibration.of(bundle.details),
            "details": bundle.details,
            "versions": manifest["versions"],
            "max_tokens": max(part.max_length for part in parts_of(bundle.preprocessor).values()),
            "files": {
                name: (folder / name).stat().st_size
                for name in manifest["files"]
                if (folder / name).is_file()
            },
        }
        return cls(**found | values)

    @property
    def evaluated(self) -> ScoredSplit:
        """The split that the scores belong to."""
        return self.splits[-1]

    @property
    def is_multi_label(self) -> bool:
        """Whether a row may have any number of labels."""
        return self.kind == "classify" and self.task.traits.is_multi_label

    @property
    def is_graded(self) -> bool:
        """Whether the model predicts a number."""
        return self.target == "graded"

    @property
    def baseline(self) -> dict[str, Any]:
        """The baseline's scores of the evaluated rows; empty if there are none."""
        return self._scores_of_same_rows("baseline")

    @property
    def teacher(self) -> dict[str, Any]:
        """The teacher's scores of the evaluated rows; empty if there are none."""
        return self._scores_of_same_rows("teacher")

    def _scores_of_same_rows(self, name: str) -> dict[str, Any]:
        return self.metrics.get(name, {}) if self.metrics.get("judged_on") == self.evaluated.name else {}
