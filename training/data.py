"""Everything a fit needs of its data: checked, split, tokenized, counted."""

import dataclasses
from pathlib import Path

import numpy as np

from training.config import FitConfig
from training.sources import Source, find_sources, read_examples
from training.split import DataSummary, split
from training.tasks.task import Columns, Part, Task


@dataclasses.dataclass(frozen=True)
class Data:
    """The parts of the data and what is known of them."""

    task: Task
    columns: Columns
    labels: list[str]
    train: Part
    validation: Part
    test: Part | None
    summary: DataSummary
    sources: dict[str, Source]

    @property
    def judged(self) -> Part:
        """The test rows, or where there are none the validation rows."""
        return self.validation if self.test is None else self.test

    @property
    def judged_name(self) -> str:
        """Which of the two `judged` is."""
        return "validation" if self.test is None else "test"


def load_data(config: FitConfig, task: Task, folder: Path) -> Data:
    """Reads, checks and splits the rows.

    Args:
        config: Says where they are.
        task: Reads an example from a row.
        folder: Where the examples are kept while the job runs.

    Raises:
        InputError: Anything that is wrong with the files or the rows.
    """
    sources = find_sources(config.data)
    columns = Columns(config.data.text_column, config.data.label_column, config.data.label_separator)
    task, columns = task.resolve(sources["train"].columns, columns)
    sets = {part: read_examples(source, task, columns, folder / part) for part, source in sources.items()}
    parts = split(
        sets["train"],
        sets.get("validation"),
        sets.get("test"),
        validation_fraction=config.data.validation_fraction,
        seed=config.train.seed,
        multi_label=task.several_labels,
    )
    return Data(
        task=task,
        columns=columns,
        labels=parts.labels,
        train=Part(sets["train"], parts.train_rows),
        validation=Part(sets.get("validation", sets["train"]), parts.validation_rows),
        test=Part(sets["test"], parts.test_rows) if "test" in sets else None,
        summary=parts.summary,
        sources=sources,
    )


def describe(data: Data) -> list[str]:
    """The counts worth a line each: sizes, what was dropped, what looks wrong."""
    s = data.summary
    lines = [f"{s.train_rows:,} training, {s.validation_rows:,} validation, {s.test_rows:,} test rows"]
    lines[0] += f"; {len(data.labels)} labels"
    notes = [
        (s.dropped_in_test, "rows dropped: their text stands in the test file"),
        (s.dropped_in_validation, "training rows dropped: their text stands in the validation file"),
        (s.repeated_train_rows, "training rows repeat an earlier text"),
        (s.conflicting_train_rows, "training rows have a text that also has another label"),
        (s.empty_texts, "rows have an empty text (kept)"),
    ]
    lines += [f"{count:,} {what}" for count, what in notes if count]
    if s.labels_only_in_test:
        names = ", ".join(f"{label} ({rows})" for label, rows in s.labels_only_in_test.items())
        lines.append(f"labels that only test rows have, counted as errors: {names}")
    return lines


def all_rows(part: Part) -> np.ndarray:
    """Numbers of all rows of the set a part belongs to."""
    return np.arange(len(part.examples))
