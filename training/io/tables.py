"""Tables of examples (CSV, TSV, JSONL, CoNLL, plain text, each also gzipped) as a stream of checked rows.

Some rows are held in memory at a time. Whatever is wrong with a file is an `InputError` of one line that
names the file and the physical line, counted by line feeds from 1 as editors and `sed` count.
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
        values: Column name to text, or to a list of texts (JSONL lists, sequence features, the words of a
            sentence). Of a list of spans each text is the JSON of one item, its numbers as strings:
            `{"start": "0", "end": "5", "label": "PER"}` or `["0", "5", "PER"]`.
        place: Where the record starts, for messages: `train.csv:12`.
    """

    values: dict[str, str | list[str]]
    place: str


def read_rows(path: Path, required: Sequence[str], optional: Sequence[str] = ()) -> Iterator[Row]:
    """Streams the rows of a CSV, TSV, JSONL, CoNLL or text file, plain or gzipped.

    The suffix names the format: `.csv`, `.tsv` (quoting as in CSV), `.jsonl` or `.json` (one object a
    line), `.conll`, `.bio`, `.iob` or `.conllu` (see `training.io.conll`), each with `.gz` after it or not. Text
    is UTF-8, with or without a byte order mark. Blank lines are skipped in tables and JSONL. In JSONL a number
    becomes the text it was written as; a list is one of texts and numbers, or one of spans: objects with a
    start and an end, or lists of three. A row of a CoNLL file is a sentence; its columns are called "1", "2"
    and so on, and each value is the list of what stands there, word for word. A row of a `.txt` file is a line, also a
    blank one; its only column is called "text".

    Args:
        path: The file; messages and places name it as given.
        required: Columns that every row has.
        optional: Columns that are kept where they exist; `Row.values` lacks them elsewhere.

    Yields:
        Rows in file order, with the named columns only.

    Raises:
        InputError: At the first step of the iteration when the file cannot be used at all, at the row
            concerned when a row cannot.
    """
    suffix = _format_suffix(path)
    if suffix in _CONLL_SUFFIXES:
        return _conll_rows(path, required, optional)
    if suffix in _TEXT_SUFFIXES:
        return _text_rows(path, required)
    return _table_rows(path, read_blocks(path, required, optional))


def has_blocks(path: Path) -> bool:
    """Whether a file is a table, so that `read_blocks` reads it; raises InputError where its name says nothing."""
    return _format_suffix(path) not in (*_CONLL_SUFFIXES, *_TEXT_SUFFIXES)


def read_blocks(path: Path, required: Sequence[str], optional: Sequence[str] = ()) -> Iterator[Block]:
    """Streams the rows of a CSV, TSV or JSONL file as `read_rows` does, many at a time."""
    delimiter = _DELIMITERS.get(_format_suffix(path))
    if delimiter is not None:
        return csv_blocks(path, delimiter, required, optional)
    return json_blocks(path, required, optional)


def column_names(path: Path) -> list[str]:
    """Gives the header of a CSV or TSV file, the keys of the first object of a JSONL file, or the numbers from "1".

    Raises:
        InputError: The file is missing, empty or not in the format that its suffix names.
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
        # Not line by line: a file without a line end would be read into memory whole.
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
