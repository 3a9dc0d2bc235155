"""Examples on disk, which are read by row during training, and the columns and subsets that name them.

An example takes about 36 bytes of memory (text offsets, two digests, label ids), whatever the length of its texts, so a
data set can be larger than memory.
"""

import dataclasses
import functools
import hashlib
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from kmha.errors import InputError
from training.io.ragged_store import RaggedStore, RaggedStoreWriter, concatenate_ranges
from training.io.tables import DEFAULT_FORMAT, TableFormat

_BLOCK_ROWS = 4096


@dataclass(frozen=True, slots=True)
class Example:
    """One example, as a task parses it from a row."""

    texts: tuple[str, ...]  # two for a pair
    labels: tuple[str, ...]
    place: str  # origin for messages: `train.csv:12`
    query: str | None = None
    ordered: bool = False  # whether the labels are a sequence, which keeps repeated labels, and not a set


@dataclasses.dataclass(eq=False)
class ExampleSet:
    """Examples on disk, written by `write_examples` or `write_labeled_texts`."""

    find_place: Callable[[int], str]  # from a row to its origin
    texts: tuple[RaggedStore, ...]  # UTF-8 bytes of each text of an example
    label_names: list[str]  # of all labels in this set, in order of first occurrence
    label_counts: dataclasses.InitVar[np.ndarray]  # labels of each row, int32 [rows]
    local_ids: np.ndarray  # indices into `label_names` of all labels, int32 [sum(label_counts)]
    digests: np.ndarray  # 64-bit hash of each example's stripped texts, uint64 [rows]
    empty_texts: int  # rows with an empty or whitespace-only text
    queries: np.ndarray  # 64-bit hash of each example's query id, or of its first text, uint64 [rows]
    named_queries: bool  # whether every example has a query id
    ordered: bool  # whether the labels of an example are a sequence and not a set

    def __post_init__(self, label_counts: np.ndarray) -> None:
        self._label_ends = np.cumsum(label_counts, dtype=np.int64).astype(np.int32)

    def __len__(self) -> int:
        return len(self.digests)

    def read_texts(self, rows: np.ndarray, field: int = 0) -> list[str]:
        """Reads text number `field` of some rows (integers [R], any order), including its surrounding whitespace."""
        flat, lengths = self.texts[field].gather(rows)
        data, texts, begin = flat.tobytes(), [], 0
        for length in lengths.tolist():
            texts.append(data[begin : begin + length].decode("utf-8"))
            begin += length
        return texts

    def local_labels(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Labels of rows [R] as indices into `label_names`, concatenated int32 [N], and their counts, int32 [R]."""
        rows = np.asarray(rows, np.int64)
        ends = self._label_ends[rows]
        starts = np.where(rows > 0, self._label_ends[rows - 1], 0).astype(np.int32)
        counts = ends - starts
        return self.local_ids[concatenate_ranges(starts, counts)], counts

    def place(self, row: int) -> str:
        """Origin of a row, for messages. Slow: may read a file from its start."""
        return self.find_place(row)

    @property
    def origin(self) -> str:
        """The file that the examples come from, taken from the first example."""
        return self.place(0).rpartition(":")[0] if len(self) else "data"

    def label_digests(self) -> np.ndarray:
        """Hashes the labels of each row, uint64 [rows]; only sequences depend on the order."""
        # Wrapping sums of mixed ids: equal for equal sets, collisions are negligible.
        numbers = mixed(self.local_ids.astype(np.uint64))
        if self.ordered:
            starts = np.concatenate([[0], self._label_ends[:-1]])
            places = np.arange(len(numbers)) - np.repeat(starts, np.diff(self._label_ends, prepend=0))
            numbers = mixed(numbers + places.astype(np.uint64))
        sums = np.zeros(len(numbers) + 1, np.uint64)
        np.cumsum(numbers, out=sums[1:])
        return np.diff(sums[self._label_ends], prepend=np.uint64(0))


def write_examples(examples: Iterable[Example], folder: Path, num_texts: int = 1) -> ExampleSet:
    """Writes a stream of examples to disk; duplicate labels of an example count once unless ordered.

    Raises:
        InputError: A label is empty.
        ValueError: An example has another number of texts, or only some examples are ordered.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names: dict[str, int] = {}
    digests, label_ids, label_counts = array("Q"), array("i"), array("i")
    queries = array("Q")
    empty_texts = unnamed = 0
    ordered = False
    with ExitStack() as files:
        places = files.enter_context(open(folder / "places.txt", "w", encoding="utf-8", newline="\n"))
        writers = [
            files.enter_context(RaggedStoreWriter(path, np.uint8)) for path in _text_paths(folder, num_texts)
        ]
        blocks: list[list[bytes]] = [[] for _ in writers]
        for example in examples:
            if len(example.texts) != num_texts:
                raise ValueError(f"{example.place}: expected {num_texts} texts, got {len(example.texts)}")
            if len(digests) and example.ordered != ordered:
                raise ValueError(f"{example.place}: expected labels all ordered or none, got both")
            ordered = example.ordered
            labels = example.labels if ordered else dict.fromkeys(example.labels)
            if "" in labels:
                raise InputError(f"{example.place}: expected a label, got an empty one")
            label_ids.extend([names.setdefault(label, len(names)) for label in labels])
            label_counts.append(len(labels))
            digest, any_empty = text_digest(example.texts)
            digests.append(digest)
            empty_texts += any_empty
            unnamed += example.query is None
            queries.append(_query_number(example))
            places.write(example.place.replace("\n", " ") + "\n")
            for block, text in zip(blocks, example.texts, strict=True):
                block.append(text.encode("utf-8"))
            if len(blocks[0]) == _BLOCK_ROWS:
                _flush(writers, blocks)
        _flush(writers, blocks)
    return ExampleSet(
        functools.partial(_noted_place, folder / "places.txt"),
        tuple(RaggedStore.open(path) for path in _text_paths(folder, num_texts)),
        list(names),
        np.array(label_counts, np.int32),
        np.array(label_ids, np.int32),
        np.array(digests, np.uint64),
        empty_texts,
        np.array(queries, np.uint64),
        bool(len(queries)) and not unnamed,
        ordered,
    )


def label_ids(examples: ExampleSet, rows: np.ndarray, labels: Sequence[str]) -> tuple[np.ndarray, list[str]]:
    """Returns the class ids of rows (integers [R]) that have one label each, int32 [R], and the names that they index.

    The names are `labels`, then the sorted names of the whole set that `labels` lacks, so that all batches agree.
    """
    extended = [*labels, *sorted(set(examples.label_names).difference(labels))]
    ids, counts = examples.local_labels(rows)
    if (counts != 1).any():
        raise ValueError("expected one label for each row, got none or several")
    return _lookup(examples, extended)[ids], extended


def label_matrix(examples: ExampleSet, rows: np.ndarray, labels: Sequence[str]) -> tuple[np.ndarray, int]:
    """Returns a multi-hot matrix over `labels`, int8 [R, C], and the number of labels of the rows not in `labels`."""
    ids, counts = examples.local_labels(rows)
    columns = _lookup(examples, labels)[ids]
    matrix = np.zeros((len(counts), len(labels)), np.int8)
    known = columns >= 0
    matrix[np.repeat(np.arange(len(counts)), counts)[known], columns[known]] = 1
    return matrix, int((~known).sum())


def mixed(values: np.ndarray) -> np.ndarray:
    """Hashes integers one to one with the finalizer of SplitMix64; uint64, any shape."""
    values = (values + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _lookup(examples: ExampleSet, labels: Sequence[str]) -> np.ndarray:
    """Maps indices of the set's label names to indices of `labels`, -1 if missing; int32."""
    places = {label: place for place, label in enumerate(labels)}
    return np.array([places.get(name, -1) for name in examples.label_names], np.int32)


def text_digest(texts: tuple[str, ...]) -> tuple[int, bool]:
    """Returns the 64-bit digest of an example's stripped texts, and whether one of them is empty."""
    stripped = [text.strip().encode("utf-8") for text in texts]
    # The length prefix distinguishes ("ab", "c") from ("a", "bc").
    framed = b"".join([b"%d\0%b" % (len(text), text) for text in stripped])
    digest = hashlib.blake2b(framed, digest_size=8).digest()
    return int.from_bytes(digest, "little"), not all(stripped)


def _query_number(example: Example) -> int:
    name = example.texts[0].strip() if example.query is None else f"\0{example.query}"
    return int.from_bytes(hashlib.blake2b(name.encode("utf-8"), digest_size=8).digest(), "little")


def _noted_place(path: Path, row: int) -> str:
    with open(path, encoding="utf-8", newline="\n") as file:
        return next(islice(file, row, None)).rstrip("\n")


def _text_paths(folder: Path, num_texts: int) -> list[Path]:
    return [folder / f"texts{field}" for field in range(num_texts)]


def _flush(writers: list[RaggedStoreWriter], blocks: list[list[bytes]]) -> None:
    for writer, block in zip(writers, blocks, strict=True):
        lengths = np.array([len(data) for data in block], np.int32)
        writer.extend(np.frombuffer(b"".join(block), np.uint8), lengths)
        block.clear()


@dataclasses.dataclass(frozen=True)
class Columns:
    """Names of the columns that a task reads; an empty name means no such column."""

    text: str  # also the first text of a pair, or the anchor of a triplet
    label: str = ""
    separator: str = "|"  # between several labels of a row
    text_b: str = ""  # also the positive text of a triplet
    wrong: str = ""  # the negative text of a triplet
    query: str = ""

    @property
    def named(self) -> dict[str, str]:
        """The columns that are set, as JSON values."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value}

    @classmethod
    def saved_names(cls, details: Mapping[str, Any]) -> dict[str, str]:
        """The `named` columns of a run, from its manifest or its details, as far as they are valid."""
        saved, fields = details.get("columns"), {field.name for field in dataclasses.fields(cls)}
        pairs = saved.items() if isinstance(saved, dict) else ()
        return {key: name for key, name in pairs if key in fields and isinstance(name, str)}

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
    """Token masking for masked language modeling."""

    share: float = 0.15  # of the tokens, in (0, 1)
    whole_word: bool = False
    packed: bool = True  # whether several short texts share a row


@dataclasses.dataclass(frozen=True)
class TrainingSet:
    """Rows to train on, with their targets and weights."""

    rows: np.ndarray  # int64 [R]; for pairs the row number of each text, int64 [R, 2]
    targets: np.ndarray  # [R, …]
    weights: np.ndarray  # float32 [R]
    lists: np.ndarray | None = None  # list id of each row for a listwise loss, integers [R]


@dataclasses.dataclass(frozen=True)
class Subset:
    """The training, validation or test rows of an example set."""

    examples: ExampleSet
    rows: np.ndarray  # integers [R]
    source: Any = None  # token batches, for a baseline that counts tokens

    def texts(self, field: int = 0) -> list[str]:
        """The texts of all rows; for pairs, the first (0) or the second (1)."""
        return self.examples.read_texts(self.rows, field)


@dataclass(frozen=True, kw_only=True)
class FormatFlags:
    """Format of the file of --data, as in `training.config.config.DataSection`."""

    delimiter: Annotated[str, tyro.conf.arg(name="data.delimiter")] = ""
    """Separates the columns of .csv and .tsv files: one character, or \\t. Default: a comma, in .tsv files a tab."""
    encoding: Annotated[str, tyro.conf.arg(name="data.encoding")] = ""
    """Text encoding of the file, for example cp1252 or utf-16. Default: utf-8."""

    @property
    def form(self) -> TableFormat:
        """The format of the file; raises InputError if it cannot be used."""
        return TableFormat(self.delimiter, self.encoding)


@dataclass(frozen=True, kw_only=True)
class ColumnFlags(FormatFlags):
    """Column settings of the commands that read labeled rows."""

    text_column: str = ""
    """Column of the text, the words, or the first text of a pair; empty: as in training."""
    text_b_column: str = ""
    """Column of the second text of a pair; empty: as in training."""
    label_column: str = ""
    """Column of the label or the tags; empty: as in training."""
    query_column: str = ""
    """Column of the query of a pair; empty: as in training."""

    def given(self) -> "ColumnOverrides":
        """Returns the columns for evaluation."""
        return ColumnOverrides(
            self.text_column, self.label_column, self.text_b_column, self.query_column, self.form
        )


@dataclass(frozen=True)
class ColumnOverrides:
    """Column names in a file of rows to evaluate, empty: as in training; and the format of the file."""

    text: str = ""
    label: str = ""
    text_b: str = ""
    query: str = ""
    form: TableFormat = DEFAULT_FORMAT
