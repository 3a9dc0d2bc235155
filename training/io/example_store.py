"""Checked examples on disk: texts and labels that are read by row while a model trains.

In memory an example costs about 36 bytes (where its texts stand, two digests, its label ids), whatever the
length of its texts, so a data set may be larger than memory.
"""

import functools
import hashlib
from array import array
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from kmha.errors import InputError
from training.io.ragged_store import RaggedStore, RaggedStoreWriter

_BLOCK_ROWS = 4096


@dataclass(frozen=True, slots=True)
class Example:
    """One example as a task reads it from a row.

    Attributes:
        texts: One text, or two to compare.
        labels: Names of the labels; one, or any number where an example may have several.
        place: Where it comes from, for messages: `train.csv:12`.
        query: Name of the query that a pair belongs to; None where there are none.
        ordered: Whether the labels are a sequence, one for each word, rather than a set: repeated ones are kept.
    """

    texts: tuple[str, ...]
    labels: tuple[str, ...]
    place: str
    query: str | None = None
    ordered: bool = False


class ExampleSet:
    """Examples on disk, as `write_examples` or `write_labelled_texts` leaves them.

    Attributes:
        texts: A spool of UTF-8 bytes for each text of an example.
        label_names: Names of all labels in this set, in the order they were first seen.
        digests: One number for each example's texts without the white space around them, uint64 [rows].
            Equal texts have equal digests; that two different ones do is as good as impossible.
        empty_texts: Number of rows that have a text of nothing but white space.
        queries: One number for each example's query, uint64 [rows]: of its name, or where it has none of its first
            text.
        named_queries: Whether every example has the name of a query.
        ordered: Whether the labels of an example are a sequence, not a set.
    """

    def __init__(
        self,
        place: Callable[[int], str],
        texts: tuple[RaggedStore, ...],
        label_names: list[str],
        label_counts: np.ndarray,
        local_ids: np.ndarray,
        digests: np.ndarray,
        empty_texts: int,
        queries: np.ndarray,
        named_queries: bool,
        ordered: bool,
    ) -> None:
        """Holds what was written; place tells where a row comes from, local_ids are places in label_names."""
        self.texts = texts
        self.label_names = label_names
        self.digests = digests
        self.empty_texts = empty_texts
        self.queries = queries
        self.named_queries = named_queries
        self.ordered = ordered
        self._place = place
        self._local_ids = local_ids
        self._label_ends = np.cumsum(label_counts, dtype=np.int64).astype(np.int32)

    def __len__(self) -> int:
        """Counts the examples."""
        return len(self.digests)

    def read_texts(self, rows: np.ndarray, field: int = 0) -> list[str]:
        """Reads texts from disk, as they were given (white space included).

        Args:
            rows: Row numbers, integers [R], in any order.
            field: Which text of each example.
        """
        flat, lengths = self.texts[field].gather(rows)
        data, texts, begin = flat.tobytes(), [], 0
        for length in lengths.tolist():
            texts.append(data[begin : begin + length].decode("utf-8"))
            begin += length
        return texts

    def local_labels(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Gives the labels of some rows as places in `label_names`, those of a sequence in its order.

        Args:
            rows: Row numbers, integers [R], in any order.

        Returns:
            The ids of all rows one after another, int32 [sum(counts)], and the number of labels of each
            row, int32 [R].
        """
        rows = np.asarray(rows, np.int64)
        ends = self._label_ends[rows]
        starts = np.where(rows > 0, self._label_ends[rows - 1], 0).astype(np.int32)
        counts = ends - starts
        shifts = starts - (np.cumsum(counts) - counts)
        return self._local_ids[np.repeat(shifts, counts) + np.arange(int(counts.sum()))], counts

    def place(self, row: int) -> str:
        """Tells where a row comes from, for messages; may read a file from its start, so not for many rows."""
        return self._place(row)

    @property
    def origin(self) -> str:
        """The file that the examples come from, by the first one's place."""
        return self.place(0).rpartition(":")[0] if len(self) else "data"

    def label_digests(self) -> np.ndarray:
        """Gives one number for the labels of each row, uint64 [rows]; their order counts in sequences only."""
        # Sums that wrap around, of well mixed ids: equal for equal sets, and otherwise as good as never.
        numbers = mixed(self._local_ids.astype(np.uint64))
        if self.ordered:
            starts = np.concatenate([[0], self._label_ends[:-1]])
            places = np.arange(len(numbers)) - np.repeat(starts, np.diff(self._label_ends, prepend=0))
            numbers = mixed(numbers + places.astype(np.uint64))
        sums = np.zeros(len(numbers) + 1, np.uint64)
        np.cumsum(numbers, out=sums[1:])
        return np.diff(sums[self._label_ends], prepend=np.uint64(0))


def write_examples(examples: Iterable[Example], folder: Path, num_texts: int = 1) -> ExampleSet:
    """Writes a stream of examples to disk; a label given twice for one example counts once, unless they are ordered.

    Args:
        examples: The examples; one at a time is held in memory, besides a block of some thousand.
        folder: Where the files go; made if it does not exist, what an older call wrote there is replaced.
        num_texts: Texts of each example.

    Raises:
        InputError: An empty label (the place is named).
        ValueError: An example with another number of texts, or ordered ones among others.
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
    """Numbers the labels of rows that have one label each.

    Args:
        examples: The set.
        rows: Row numbers, integers [R].
        labels: The names that a model knows, in the order of its outputs.

    Returns:
        The place of each row's label in the list, int32 [R], and that list: `labels`, then the names in
        this set (also in rows not asked for, so that batches agree) that `labels` lacks, sorted.

    Raises:
        ValueError: A row that has no label or several.
    """
    extended = [*labels, *sorted(set(examples.label_names).difference(labels))]
    ids, counts = examples.local_labels(rows)
    if (counts != 1).any():
        raise ValueError("expected one label for each row, got none or several")
    return _lookup(examples, extended)[ids], extended


def label_matrix(examples: ExampleSet, rows: np.ndarray, labels: Sequence[str]) -> tuple[np.ndarray, int]:
    """Marks the labels of rows that have any number of labels.

    Args:
        examples: The set.
        rows: Row numbers, integers [R].
        labels: The names that a model knows, C of them, in the order of its outputs.

    Returns:
        1 where a row has a label, int8 [R, C], and how many labels of these rows are not in `labels`.
    """
    ids, counts = examples.local_labels(rows)
    columns = _lookup(examples, labels)[ids]
    matrix = np.zeros((len(counts), len(labels)), np.int8)
    known = columns >= 0
    matrix[np.repeat(np.arange(len(counts)), counts)[known], columns[known]] = 1
    return matrix, int((~known).sum())


def mixed(values: np.ndarray) -> np.ndarray:
    """Spreads integers over all 64 bits, one to one (the finaliser of SplitMix64); uint64, any shape."""
    values = (values + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _lookup(examples: ExampleSet, labels: Sequence[str]) -> np.ndarray:
    """Maps places in the set's own names to places in `labels`, -1 where it has no such name; int32."""
    places = {label: place for place, label in enumerate(labels)}
    return np.array([places.get(name, -1) for name in examples.label_names], np.int32)


def text_digest(texts: tuple[str, ...]) -> tuple[int, bool]:
    """Gives the digest of the texts of one example, and whether one of them is empty."""
    stripped = [text.strip().encode("utf-8") for text in texts]
    # Each text's length before it keeps ("ab", "c") apart from ("a", "bc").
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
