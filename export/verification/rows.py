"""The rows for which every exported model must predict as its bundle: real rows and edge cases."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from export.predictors.protocol import Row
from export.verification.adversarial_texts import edge_case_rows
from kmha.bundle.bundle import Bundle
from training.evaluation import bundle_evaluation
from training.io.examples import ColumnOverrides, Subset
from training.tasks.protocol import Task


@dataclass(frozen=True)
class Rows:
    """Texts, pairs or sentences.

    Attributes:
        texts: Real rows, then edge cases; of a tagger lists of words, then raw texts.
        edge_case: Descriptions of the edge cases.
        part: The real rows with their labels.
        task: Computes the metric.
    """

    texts: list[Row]
    edge_case: list[str]
    part: Subset
    task: Task

    @property
    def real(self) -> int:
        """Number of real rows."""
        return len(self.part.rows)

    def place(self, index: int) -> str:
        """The origin of a row, for messages."""
        if index < self.real:
            return self.part.examples.place(int(self.part.rows[index]))
        kind = "sentence" if isinstance(self.texts[index], list) else "text"
        return f"edge-case {kind}: {self.edge_case[index - self.real]}"

    def metric(self, labels: Sequence[str], predictions: Any, decision: dict[str, Any]) -> float | None:
        """The task's main metric of predictions for the real rows; None where it is not defined."""
        scores = self.task.scores(self.part, list(labels), predictions, decision)
        value = scores[self.task.metric]
        return None if value is None else float(value)


def read_rows(bundle: Bundle, path: Path, given: ColumnOverrides, most: int, folder: Path) -> Rows:
    """Reads rows of a file, evenly spread over it, and adds the edge cases.

    Args:
        bundle: The bundle, which stores the column names of training.
        path: A file of labeled rows.
        given: Column names that differ from training.
        most: Most rows to read; 0: all.
        folder: Folder for temporary files.

    Raises:
        InputError: The file or a row of it cannot be used.
    """
    task, part = bundle_evaluation.read_rows(bundle, path, given, folder)
    examples = part.examples
    count = min(most or len(examples), len(examples))
    part = Subset(examples, np.linspace(0, len(examples) - 1, count).round().astype(np.int64))
    edge_case = edge_case_rows(bundle)
    found = bundle_evaluation.read_inputs(bundle, part)
    return Rows([*map(_encoded, found), *edge_case.values()], list(edge_case), part, task)


def _encoded(row: Any) -> Row:
    if isinstance(row, str):
        return row.encode("utf-8")
    if isinstance(row, list):
        return [word.encode("utf-8") for word in row]
    first, second = row
    return first.encode("utf-8"), second.encode("utf-8")
