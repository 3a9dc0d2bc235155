"""Sources of the rows of each part: files, TensorFlow data sets, or sample data."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from kmha.bundle.manifest import sha256
from kmha.errors import InputError
from training.config.config import DataSection
from training.data.classification_reader import write_labelled_texts
from training.io.atomic_write import unchanged
from training.io.example_store import ExampleSet, write_examples
from training.io.samples import pos_rows, review_rows
from training.io.table_blocks import Block
from training.io.tables import Row, column_names, has_blocks, read_blocks, read_rows
from training.io.tfds import tfds_rows
from training.io.types import Columns
from training.tasks.protocol import Task

# Columns and rows of each sample.
_SAMPLES: dict[str, tuple[tuple[str, str], Callable[[Any], Iterator[Row]]]] = {
    "reviews": (("text", "label"), review_rows),
    "pos": (("words", "tags"), pos_rows),
}


@dataclasses.dataclass(frozen=True)
class Source:
    """A source of rows."""

    name: str
    columns: Sequence[str] | None  # None if unknown before reading
    rows: Callable[[Sequence[str]], Iterator[Row]]
    file: Path | None = None
    blocks: Callable[[Sequence[str]], Iterator[Block]] | None = None  # the same rows in blocks

    def fingerprint(self) -> str | None:
        """SHA-256 of the file; None if the source is not a single file."""
        return None if self.file is None else sha256(self.file)

    def check(self, columns: Columns) -> None:
        """Reads the first row of a file; raises InputError if it is unreadable or lacks a column."""
        if self.file is not None:
            next(self.rows(columns.required), None)


def file_source(path: Path) -> Source:
    """Source of the rows of a data file; raises InputError if the file is unusable."""
    return Source(
        str(path),
        column_names(path),
        lambda columns: read_rows(path, columns),
        path,
        (lambda columns: read_blocks(path, columns)) if has_blocks(path) else None,
    )


def find_sources(data: DataSection, sample: str = "reviews") -> dict[str, Source]:
    """Returns the sources of "train" and, if given, "validation" and "test".

    Uses the sample data set `sample` if `data` has no source. Raises InputError for missing or contradictory flags.
    """
    if data.train is not None and data.tfds:
        raise InputError("--data.train and --data.tfds: expected one source of rows, got both")
    files = {"train": data.train, "validation": data.validation, "test": data.test}
    sources = {part: file_source(path) for part, path in files.items() if path is not None}
    if "train" in sources:
        return sources
    if data.tfds:
        return {**_tfds_sources(data), **sources}
    if sources:
        raise InputError(f"--data.train: expected training rows with --data.{next(iter(sources))}, got none")
    columns, rows = _SAMPLES[sample]
    return {
        "train": Source(f"sample {sample} (train)", columns, lambda _: rows("train")),
        "test": Source(f"sample {sample} (test)", columns, lambda _: rows("test")),
    }


def _tfds_sources(data: DataSection) -> dict[str, Source]:
    splits = {"train": "train"} | ({"test": data.tfds_test} if data.tfds_test else {})
    return {
        part: Source(
            f"{data.tfds} ({split})",
            None,
            lambda columns, split=split: tfds_rows(data.tfds, split, columns, data.tfds_dir),
        )
        for part, split in splits.items()
    }


def read_examples(source: Source, task: Task, columns: Columns, folder: Path) -> ExampleSet:
    """Writes checked rows to disk; raises InputError if a row is invalid, there are none, or the file changes."""
    if source.blocks is not None and task.traits.is_text_and_label:
        blocks = source.blocks(columns.required)
        return write_labelled_texts(blocks, source.name, task, columns, folder)
    # If the columns are unknown before reading, optional columns are required.
    optional = (name for name in columns.optional if source.columns is None or name in source.columns)
    rows = source.rows((*columns.required, *optional))
    skipped = 0

    def checked():
        nonlocal skipped
        for row in rows:
            found = task.parse_row(row, columns)
            # Only rows without a text give no example.
            skipped += not found
            yield from found

    with unchanged(source.file):
        examples = write_examples(checked(), folder, task.traits.num_texts)
    examples.empty_texts += skipped
    if not len(examples):
        raise InputError(f"{source.name}: expected rows, got none")
    return examples
