"""Sources of the rows of each part (files, TensorFlow data sets, sample data), and their checked examples."""

import dataclasses
import functools
import hashlib
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from kmha.bundle.manifest import MATCH, TAG, sha256
from kmha.errors import InputError
from training.config.config import DataSection
from training.io.datasets import pos_rows, review_rows, tfds_rows
from training.io.disk import open_lines
from training.io.examples import Columns, Example, ExampleSet, Subset, write_examples
from training.io.ragged_store import RaggedStore, RaggedStoreWriter
from training.io.tables import (
    DEFAULT_FORMAT,
    Block,
    Row,
    TableFormat,
    column_names,
    has_blocks,
    read_blocks,
    read_rows,
)
from training.tasks.protocol import Task

# Columns and rows of each sample.
_SAMPLES: dict[str, tuple[tuple[str, str], Callable[[Any], Iterator[Row]]]] = {
    "reviews": (("text", "label"), review_rows),
    "pos": (("words", "tags"), pos_rows),
}

# Size of the cache of label values; multi-label rows can have any number of distinct values.
_MOST_KNOWN = 100_000


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


def file_source(path: Path, form: TableFormat = DEFAULT_FORMAT) -> Source:
    """Source of the rows of a data file; raises InputError if the file is unusable."""
    return Source(
        str(path),
        column_names(path, form),
        lambda columns: read_rows(path, columns, form=form),
        path,
        (lambda columns: read_blocks(path, columns, form=form)) if has_blocks(path) else None,
    )


def find_sources(
    data: DataSection, sample: str = "reviews", in_memory: Mapping[str, Source] | None = None
) -> dict[str, Source]:
    """Returns the sources of "train" and, if given, "validation" and "test".

    A part that is `in_memory` has its name in place of a path in `data`. Uses the sample data set `sample` if `data`
    has no source. Raises InputError for missing or contradictory flags.
    """
    in_memory = in_memory or {}
    if data.train is not None and data.tfds:
        raise InputError("--data.train and --data.tfds: expected one source of rows, got both")
    files = {"train": data.train, "validation": data.validation, "test": data.test}
    sources = {
        part: in_memory.get(part) or file_source(path, data.form)
        for part, path in files.items()
        if path is not None
    }
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
        return write_labeled_texts(blocks, source.name, task, columns, folder)
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

    examples = write_examples(checked(), folder, task.traits.num_texts)
    examples.empty_texts += skipped
    if not len(examples):
        raise InputError(f"{source.name}: expected rows, got none")
    return examples


def read_unlabeled(
    path: Path, task: str, columns: Columns, folder: Path, form: TableFormat = DEFAULT_FORMAT
) -> ExampleSet:
    """Reads unlabeled texts for a task ("classify", "match" or "tag") and writes them to disk.

    A `.txt` file has one text per line: pairs are separated by a tab, words of sentences by whitespace, and blank
    lines are skipped. A table has the columns of the training rows except the labels. Both can be gzipped.
    """
    is_plain = path.name.lower().removesuffix(".gz").endswith(".txt")
    texts = _lines(path, task, form) if is_plain else _rows(path, task, columns, form)
    examples = (Example(each, (), place, ordered=task == TAG) for place, each in texts)
    found = write_examples(examples, folder, 2 if task == MATCH else 1)
    if not len(found):
        raise InputError(f"{path}: expected texts, got none")
    return found


def without_copies(examples: ExampleSet, rows: np.ndarray) -> np.ndarray:
    """The first of the rows, integers [R], with each text, in their order."""
    return rows[np.sort(np.unique(examples.digests[rows], return_index=True)[1])]


def unseen(examples: ExampleSet, others: list[Subset]) -> np.ndarray:
    """Rows whose texts are in none of the other parts, int64."""
    known = np.concatenate([part.examples.digests[part.rows] for part in others])
    return np.flatnonzero(~np.isin(examples.digests, known))


def _lines(path: Path, task: str, form: TableFormat) -> Iterator[tuple[str, tuple[str, ...]]]:
    with open_lines(path, form.encoding) as lines:
        for number, line in enumerate(lines, start=1):
            place, line = f"{path}:{number}", line.rstrip("\r\n")
            if not line.strip():
                continue
            if task == TAG:
                yield place, ("\n".join(re.findall(r"[^ \t]+", line)),)
                continue
            texts = tuple(line.split("\t")) if task == MATCH else (line,)
            if task == MATCH and len(texts) != 2:
                given = f"{len(texts) - 1} tabs" if len(texts) > 1 else "none"
                raise InputError(f"{place}: expected two texts with one tab between them, got {given}")
            yield place, texts


def _rows(
    path: Path, task: str, columns: Columns, form: TableFormat
) -> Iterator[tuple[str, tuple[str, ...]]]:
    names = (columns.text, columns.text_b) if task == MATCH else (columns.text,)
    for row in read_rows(path, names, form=form):
        values = [row.values[name] for name in names]
        if task == TAG:
            yield row.place, (_sentence(values[0], row.place, columns.text),)
            continue
        for name, value in zip(names, values, strict=True):
            if not isinstance(value, str):
                raise InputError(f"{row.place}: {name} must be one text, got a list")
        yield row.place, tuple(values)  # pyright: ignore  (all are str)


def _sentence(words: str | list[str], place: str, name: str) -> str:
    if isinstance(words, str):
        raise InputError(f"{place}: {name} must be a list of words (CoNLL or JSONL), got one text")
    if not words:
        raise InputError(f"{place}: {name} must hold a word, got none")
    for number, word in enumerate(words, start=1):
        if not word.strip() or "\n" in word:
            expected = "must hold a visible character and no line feed"
            raise InputError(f"{place}: word {number} in {name} {expected}, got {word!r}")
    return "\n".join(words)


def write_labeled_texts(
    blocks: Iterable[Block], name: str, task: Task, columns: Columns, folder: Path
) -> ExampleSet:
    """Checks the rows of a table and writes them to disk; raises InputError with file and line for an invalid row.

    Gives the result of `write_examples` in a third of the time: the task, whose labels depend on the label column
    only, parses each distinct label value once and not once per row.
    """
    folder.mkdir(parents=True, exist_ok=True)
    labels = _Labels(name, task, columns)
    digests, label_ids, label_counts = bytearray(), array("i"), array("i")
    empty_texts = 0
    with open(folder / "lines", "wb") as lines, RaggedStoreWriter(folder / "texts0", np.uint8) as writer:
        for block in blocks:
            found = labels.of(block)
            label_ids.extend(chain.from_iterable(found))
            label_counts.extend(map(len, found))
            data = [text.encode("utf-8") for text in block.columns[columns.text]]
            each, empty = _digests(block.columns[columns.text], data)
            digests += each
            empty_texts += empty
            lengths = np.fromiter(map(len, data), np.int32, len(data))
            writer.extend(np.frombuffer(b"".join(data), np.uint8), lengths)
            lines.write(np.array(block.lines, "<i8").tobytes())
    numbers = np.frombuffer(digests, "<u8")
    return ExampleSet(
        functools.partial(_place, name, folder / "lines"),
        (RaggedStore.open(folder / "texts0"),),
        list(labels.names),
        np.frombuffer(label_counts, np.int32),
        np.frombuffer(label_ids, np.int32),
        numbers,
        empty_texts,
        # With one text per example, the query is the text.
        numbers,
        False,
        False,
    )


class _Labels:
    """Maps the labels of rows to ids, in order of first occurrence."""

    def __init__(self, name: str, task: Task, columns: Columns):
        self.names: dict[str, int] = {}
        self._name, self._task, self._columns = name, task, columns
        self._known: dict[Any, tuple[int, ...]] = {}

    def of(self, block: Block) -> list[tuple[int, ...]]:
        """Label ids of each row."""
        texts, given = block.columns[self._columns.text], block.columns[self._columns.label]
        if set(map(type, texts)) == {str}:
            try:
                return [self._known[each] for each in given]
            except (KeyError, TypeError):
                pass  # A new value, or a list.
        return [self._of_row(*row) for row in zip(texts, given, block.lines, strict=True)]

    def _of_row(self, text: Any, given: Any, line: int) -> tuple[int, ...]:
        key = given if isinstance(given, str) else tuple(given)
        found = self._known.get(key)
        if found is None or not isinstance(text, str):
            row = Row({self._columns.text: text, self._columns.label: given}, f"{self._name}:{line}")
            (example,) = self._task.parse_row(row, self._columns)
            # Duplicate labels count once.
            found = tuple(
                self.names.setdefault(label, len(self.names)) for label in dict.fromkeys(example.labels)
            )
            if len(self._known) == _MOST_KNOWN:
                self._known.clear()
            self._known[key] = found
        return found


def _digests(texts: Iterable[str], data: Iterable[bytes]) -> tuple[bytes, int]:
    """Digests of the texts as in `text_digest`, 8 bytes each, and the number of empty texts."""
    blake2b, found, empty = hashlib.blake2b, [], 0
    for text, each in zip(texts, data, strict=True):
        stripped = text.strip()
        if len(stripped) != len(text):
            each = stripped.encode("utf-8")
        empty += not each
        found.append(blake2b(b"%d\0%b" % (len(each), each), digest_size=8).digest())
    return b"".join(found), empty


def _place(name: str, path: Path, row: int) -> str:
    with open(path, "rb") as file:
        file.seek(8 * row)
        line = int.from_bytes(file.read(8), "little")
    return f"{name}:{line}".replace("\n", " ")
