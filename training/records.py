"""Tables of examples (CSV, TSV, JSONL, CoNLL, plain text, each also gzipped) as a stream of checked rows.

One row is held in memory at a time. Whatever is wrong with a file is an `InputError` of one line that
names the file and the physical line, counted by line feeds from 1 as editors and `sed` count.
"""

import csv
import difflib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from kmha.errors import InputError
from training.conll import count_columns, read_sentences
from training.lines import open_lines

MAX_FIELD_CHARS = 1 << 24
"""Longest CSV field, characters. A quote left open would otherwise read the whole file into one field."""

_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_JSON_SUFFIXES = (".jsonl", ".json")
_TEXT_SUFFIXES = (".txt",)
TEXT = "text"
_CONLL_SUFFIXES = (".conll", ".bio", ".iob", ".conllu")
_JSON_KINDS = {dict: "an object", list: "a list", bool: "true or false", type(None): "null", str: "a string"}


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
    line), `.conll`, `.bio`, `.iob` or `.conllu` (see `training.conll`), each with `.gz` after it or not. Text
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
    if suffix in _DELIMITERS:
        return _csv_rows(path, _DELIMITERS[suffix], required, optional)
    if suffix in _CONLL_SUFFIXES:
        return _conll_rows(path, required, optional)
    if suffix in _TEXT_SUFFIXES:
        return _text_rows(path, required)
    return _json_rows(path, required, optional)


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
    with open_lines(path) as lines:
        if suffix in _DELIMITERS:
            return _header(path, csv.reader(lines, delimiter=_DELIMITERS[suffix], strict=True))
        for number, line in enumerate(lines, start=1):
            if not line.isspace():
                return list(_json_object(line, f"{path}:{number}"))
    raise InputError(f"{path}: one JSON object a line wanted, an empty file given")


def _format_suffix(path: Path) -> str:
    name = path.name.lower().removesuffix(".gz")
    suffix = name[name.rfind(".") :] if "." in name else ""
    if suffix not in (*_DELIMITERS, *_JSON_SUFFIXES, *_CONLL_SUFFIXES, *_TEXT_SUFFIXES):
        wanted = ".csv, .tsv, .jsonl, .json, .conll, .bio, .iob, .conllu or .txt (each also with .gz)"
        raise InputError(f"{path}: a name that ends in {wanted} wanted, {suffix or 'no suffix'} given")
    return suffix


def _header(path: Path, reader: Any) -> list[str]:
    try:
        names = next(filter(None, reader), None)
    except csv.Error as error:
        raise InputError(_csv_problem(path, 1, reader.line_num, error)) from None
    if names is None:
        raise InputError(f"{path}: a header line with the column names wanted, an empty file given")
    # Spreadsheets leave several nameless columns behind; nobody can ask for them, so they do no harm.
    repeated = sorted({name for name in names if name and names.count(name) > 1})
    if repeated:
        raise InputError(f"{path}:{reader.line_num}: each column once wanted, {repeated[0]!r} given twice")
    return names


def _csv_rows(path: Path, delimiter: str, required: Sequence[str], optional: Sequence[str]) -> Iterator[Row]:
    csv.field_size_limit(max(csv.field_size_limit(), MAX_FIELD_CHARS))
    with open_lines(path) as lines:
        # strict: a quote that is never closed is an error, not one field with the rest of the file.
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
        names = _header(path, reader)
        for name in required:
            if name not in names:
                _raise_missing(str(path), name, names)
        wanted = [(name, names.index(name)) for name in (*required, *optional) if name in names]
        width, prefix, found = len(names), f"{path}:", False
        first_line = reader.line_num + 1
        try:
            for fields in reader:
                if len(fields) == width:
                    found = True
                    yield Row({name: fields[index] for name, index in wanted}, f"{prefix}{first_line}")
                elif len(fields) > 1 or (fields and fields[0].strip()):
                    count = f"{width} field{'s' if width > 1 else ''} wanted ({', '.join(names)})"
                    raise InputError(f"{prefix}{first_line}: {count}, {len(fields)} given")
                first_line = reader.line_num + 1
        except csv.Error as error:
            raise InputError(_csv_problem(path, first_line, reader.line_num, error)) from None
        if not found:
            raise InputError(f"{path}: rows wanted, nothing after the header given")


def _csv_problem(path: Path, first_line: int, last_line: int, error: csv.Error) -> str:
    text = str(error)
    if "unexpected end" in text:
        problem = "a closing quote wanted, the file ends inside a quoted field that starts here"
    elif "field limit" in text:
        problem = (
            f"a field of at most {csv.field_size_limit()} characters wanted, more given (an open quote?)"
        )
    elif "new-line" in text:
        problem = r"lines that end in \n or \r\n wanted, a lone \r outside quotes given"
    else:
        problem = f'quotes inside a quoted field written as "" wanted, others given at line {last_line}'
    return f"{path}:{first_line}: {problem}"


def _raise_missing(place: str, name: str, names: Sequence[str]) -> NoReturn:
    folded = {each.strip().casefold(): each for each in names}
    near = difflib.get_close_matches(name.strip().casefold(), folded, n=1)
    hint = f"; did you mean {folded[near[0]]!r}?" if near else ""
    raise InputError(f"{place}: column {name!r} wanted, columns {', '.join(names) or '(none)'} given{hint}")


def _conll_rows(path: Path, required: Sequence[str], optional: Sequence[str]) -> Iterator[Row]:
    names = column_names(path)
    for name in required:
        if name not in names:
            _raise_missing(str(path), name, names)
    kept = [name for name in dict.fromkeys((*required, *optional)) if name in names]
    for line, columns in read_sentences(path, [names.index(name) for name in kept]):
        yield Row(dict(zip(kept, columns, strict=True)), f"{path}:{line}")


def _text_rows(path: Path, required: Sequence[str]) -> Iterator[Row]:
    for name in required:
        if name != TEXT:
            _raise_missing(str(path), name, (TEXT,))
    found, number = False, 0
    with open_lines(path) as lines:
        # Not line by line: a file without a line end would be read into memory whole.
        while line := lines.readline(MAX_FIELD_CHARS + 1):
            number += 1
            if len(line) > MAX_FIELD_CHARS:
                raise InputError(
                    f"{path}:{number}: a line of at most {MAX_FIELD_CHARS:,} characters wanted, more given"
                )
            found = found or not line.isspace()
            yield Row({TEXT: line.rstrip("\r\n")}, f"{path}:{number}")
    if not found:
        given = "only empty lines" if number else "an empty file"
        raise InputError(f"{path}: a text a line wanted, {given} given")


def _json_rows(path: Path, required: Sequence[str], optional: Sequence[str]) -> Iterator[Row]:
    found = False
    with open_lines(path) as lines:
        for number, line in enumerate(lines, start=1):
            if line.isspace():
                continue
            place = f"{path}:{number}"
            record = _json_object(line, place)
            for name in required:
                if name not in record:
                    _raise_missing(place, name, list(record))
            values = {
                name: _json_value(record[name], name, place)
                for name in (*required, *optional)
                if name in record
            }
            # Only an escape can make half a surrogate pair, which no UTF-8 encoder takes.
            if "\\ud" in line or "\\uD" in line:
                _check_encodable(values, place)
            found = True
            yield Row(values, place)
    if not found:
        raise InputError(f"{path}: one JSON object a line wanted, an empty file given")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


# Numbers stay the text they were written as: no rounding, no limit on digits.
_decode = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=_refuse_constant).decode


def _json_object(line: str, place: str) -> dict[str, Any]:
    try:
        record = _decode(line)
    except (ValueError, RecursionError) as error:
        problem = (
            f"{error.msg} at position {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else error
        )
        raise InputError(f"{place}: one JSON object a line wanted, other text given ({problem})") from None
    if not isinstance(record, dict):
        raise InputError(f"{place}: one JSON object a line wanted, {_JSON_KINDS[type(record)]} given")
    return record


def _json_value(value: Any, name: str, place: str) -> str | list[str]:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return value
    if isinstance(value, list) and all(map(_is_span, value)):
        return [json.dumps(each, ensure_ascii=False) for each in value]
    given = "a list with other things" if isinstance(value, list) else _JSON_KINDS[type(value)]
    raise InputError(f"{place}: a string, a number or a list of strings wanted for {name!r}, {given} given")


def _is_span(item: Any) -> bool:
    return (
        item.keys() >= {"start", "end"}
        if isinstance(item, dict)
        else isinstance(item, list) and len(item) == 3
    )


def _check_encodable(values: dict[str, str | list[str]], place: str) -> None:
    for name, value in values.items():
        try:
            "".join(value).encode("utf-8")
        except UnicodeEncodeError:
            raise InputError(
                f"{place}: whole characters wanted for {name!r}, half a surrogate pair given"
            ) from None
