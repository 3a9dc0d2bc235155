"""Streams the rows of CSV, TSV, JSONL, CoNLL and plain text files, each also gzipped.

Errors are one-line `InputError`s with the file and the physical line, counted by line feeds from 1.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kmha.errors import InputError
from training.io.conll import count_columns, read_sentences
from training.io.table_blocks import (
    MAX_FIELD_CHARS,
    Block,
    csv_blocks,
    csv_header,
    json_blocks,
    json_keys,
    raise_missing,
)
from training.io.text_lines import open_lines

_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_JSON_SUFFIXES = (".jsonl", ".json")
_TEXT_SUFFIXES = (".txt",)
TEXT = "text"
_CONLL_SUFFIXES = (".conll", ".bio", ".iob", ".conllu")


@dataclass(frozen=True, slots=True)
class Row:
    """One record of a table.

    Attributes:
        values: Column name to text, or to a list of texts (JSONL lists, sequence features, words). In a list of spans,
            each text is the JSON of one item with its numbers as strings: `{"start": "0", "end": "5", "label": "PER"}`
            or `["0", "5", "PER"]`.
        place: Origin for messages: `train.csv:12`.
    """

    values: dict[str, str | list[str]]
    place: str


def read_rows(path: Path, required: Sequence[str], optional: Sequence[str] = ()) -> Iterator[Row]:
    """Streams the rows of a file; its suffix selects the format, optionally followed by `.gz`.

    - `.csv`, `.tsv`: quoted as in CSV. Blank lines are skipped.
    - `.jsonl`, `.json`: one object per line. Blank lines are skipped. Numbers become text as written. A list contains
      texts and numbers, or spans: objects with a start and an end, or lists of three items.
    - `.conll`, `.bio`, `.iob`, `.conllu`: one row per sentence (see `training.io.conll`). Columns are named "1", "2",
      …; each value is a list with one entry per word.
    - `.txt`: one row per line, including blank lines, with the single column "text".

    Args:
        path: UTF-8 file, with or without a byte order mark.
        required: Columns that must exist.
        optional: Columns that are kept if they exist.

    Raises:
        InputError: The file is unusable (raised at the first iteration step) or a row is invalid.
    """
    suffix = _format_suffix(path)
    if suffix in _CONLL_SUFFIXES:
        return _conll_rows(path, required, optional)
    if suffix in _TEXT_SUFFIXES:
        return _text_rows(path, required)
    return _table_rows(path, read_blocks(path, required, optional))


def has_blocks(path: Path) -> bool:
    """Whether `read_blocks` supports the file; raises InputError for an unknown suffix."""
    return _format_suffix(path) not in (*_CONLL_SUFFIXES, *_TEXT_SUFFIXES)


def read_blocks(path: Path, required: Sequence[str], optional: Sequence[str] = ()) -> Iterator[Block]:
    """Streams the rows of a CSV, TSV or JSONL file in blocks; see `read_rows`."""
    delimiter = _DELIMITERS.get(_format_suffix(path))
    if delimiter is not None:
        return csv_blocks(path, delimiter, required, optional)
    return json_blocks(path, required, optional)


def column_names(path: Path) -> list[str]:
    """Column names: the CSV header, the keys of the first JSONL object, CoNLL numbers from "1", or "text".

    Raises InputError if the file is missing, empty or not in the format of its suffix.
    """
    suffix = _format_suffix(path)
    if suffix in _CONLL_SUFFIXES:
        return [str(number) for number in range(1, count_columns(path) + 1)]
    if suffix in _TEXT_SUFFIXES:
        with open_lines(path):
            return [TEXT]
    if suffix in _DELIMITERS:
        return csv_header(path, _DELIMITERS[suffix])
    return json_keys(path)


def _format_suffix(path: Path) -> str:
    name = path.name.lower().removesuffix(".gz")
    suffix = name[name.rfind(".") :] if "." in name else ""
    if suffix not in (*_DELIMITERS, *_JSON_SUFFIXES, *_CONLL_SUFFIXES, *_TEXT_SUFFIXES):
        expected = ".csv, .tsv, .jsonl, .json, .conll, .bio, .iob, .conllu or .txt (each also with .gz)"
        raise InputError(f"{path}: expected a name that ends in {expected}, got {suffix or 'no suffix'}")
    return suffix


def _table_rows(path: Path, blocks: Iterator[Block]) -> Iterator[Row]:
    prefix = f"{path}:"
    for block in blocks:
        names = list(block.columns)
        for line, *values in zip(block.lines, *block.columns.values(), strict=True):
            given = {name: value for name, value in zip(names, values, strict=True) if value is not None}
            yield Row(given, f"{prefix}{line}")


def _conll_rows(path: Path, required: Sequence[str], optional: Sequence[str]) -> Iterator[Row]:
    names = column_names(path)
    for name in required:
        if name not in names:
            raise_missing(str(path), name, names)
    kept = [name for name in dict.fromkeys((*required, *optional)) if name in names]
    for line, columns in read_sentences(path, [names.index(name) for name in kept]):
        yield Row(dict(zip(kept, columns, strict=True)), f"{path}:{line}")


def _text_rows(path: Path, required: Sequence[str]) -> Iterator[Row]:
    for name in required:
        if name != TEXT:
            raise_missing(str(path), name, (TEXT,))
    found, number = False, 0
    with open_lines(path) as lines:
        # The limit keeps a file without line ends from filling the memory.
        while line := lines.readline(MAX_FIELD_CHARS + 1):
            number += 1
            if len(line) > MAX_FIELD_CHARS:
                raise InputError(
                    f"{path}:{number}: expected a line of at most {MAX_FIELD_CHARS:,} characters, got more"
                )
            found = found or not line.isspace()
            yield Row({TEXT: line.rstrip("\r\n")}, f"{path}:{number}")
    if not found:
        given = "only empty lines" if number else "an empty file"
        raise InputError(f"{path}: expected one text per line, got {given}")
