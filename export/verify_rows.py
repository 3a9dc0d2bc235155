"""The rows that every copy of a bundle must answer alike: real ones, and nasty ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from export.nasty import nasty_texts
from kmha.bundle import Bundle
from training.sources import file_source, read_examples
from training.tasks.classify import ClassifyTask
from training.tasks.task import Columns, Part


@dataclass(frozen=True)
class Rows:
    """Texts to answer, the real ones first.

    Attributes:
        texts: Real rows, then nasty ones.
        nasty: What is nasty about each of the others.
        part: The real rows with their labels.
        task: Scores them.
    """

    texts: list[bytes]
    nasty: list[str]
    part: Part
    task: ClassifyTask

    @property
    def real(self) -> int:
        """Number of real rows."""
        return len(self.part.rows)

    def place(self, index: int) -> str:
        """Where a text comes from, for messages."""
        if index < self.real:
            return self.part.examples.place(int(self.part.rows[index]))
        return f"nasty text: {self.nasty[index - self.real]}"

    def metric(self, labels: Sequence[str], probabilities: np.ndarray, decision: dict[str, Any]) -> float:
        """The task's own metric of probabilities [rows, C], nasty rows ignored."""
        scores = self.task.scores(self.part, list(labels), probabilities[: self.real], decision)
        return float(scores[self.task.metric])


def read_rows(
    bundle: Bundle, path: Path, label_column: str, text_column: str, most: int, folder: Path
) -> Rows:
    """Reads a file's rows, evenly spread over it where there are more than asked for.

    Args:
        bundle: Says what the columns were called in training.
        path: Labelled rows.
        label_column: Empty for the name used in training.
        text_column: Likewise.
        most: Rows to take; 0 takes all.
        folder: Where the rows are kept meanwhile.

    Raises:
        InputError: The file or a row of it cannot be used.
    """
    trained = Columns(**bundle.details.get("columns", {"text": "text", "label": "label", "separator": "|"}))
    columns = Columns(text_column or trained.text, label_column or trained.label, trained.separator)
    task = ClassifyTask(multi_label=bundle.multi_label)
    examples = read_examples(file_source(path), task, columns, folder)
    count = min(most or len(examples), len(examples))
    part = Part(examples, np.linspace(0, len(examples) - 1, count).round().astype(np.int64))
    nasty = nasty_texts(bundle)
    return Rows(
        [*(text.encode("utf-8") for text in part.texts()), *nasty.values()],
        list(nasty),
        part,
        task,
    )
