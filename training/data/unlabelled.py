"""Unlabeled texts for distillation."""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from kmha.bundle.manifest import MATCH, TAG
from kmha.errors import InputError
from training.io.example_store import Example, ExampleSet, write_examples
from training.io.tables import read_rows
from training.io.text_lines import open_lines
from training.io.types import Columns, Subset


def read_unlabelled(path: Path, task: str, columns: Columns, folder: Path) -> ExampleSet:
    """Reads unlabeled texts for a task ("classify", "match" or "tag") and writes them to disk.

    A `.txt` file has one text per line: pairs are separated by a tab, words of sentences by whitespace, and blank lines
    are skipped. A table has the columns of the training rows except the labels. Both can be gzipped.

    Raises:
        InputError: The file or a row is invalid, or there is no text.
    """
    is_plain = path.name.lower().removesuffix(".gz").endswith(".txt")
    texts = _lines(path, task) if is_plain else _rows(path, task, columns)
    examples = (Example(each, (), place, ordered=task == TAG) for place, each in texts)
    found = write_examples(examples, folder, 2 if task == MATCH else 1)
    if not len(found):
        raise InputError(f"{path}: expected texts, got none")
    return found


def unseen(examples: ExampleSet, others: list[Subset]) -> np.ndarray:
    """Rows whose texts are in none of the other parts, int64."""
    known = np.concatenate([part.examples.digests[part.rows] for part in others])
    return np.flatnonzero(~np.isin(examples.digests, known))


def _lines(path: Path, task: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    with open_lines(path) as lines:
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


def _rows(path: Path, task: str, columns: Columns) -> Iterator[tuple[str, tuple[str, ...]]]:
    names = (columns.text, columns.text_b) if task == MATCH else (columns.text,)
    for row in read_rows(path, names):
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
