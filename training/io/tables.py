"""Streams the rows of CSV, TSV, JSONL, CoNLL and plain text files, each also gzipped, and of Parquet and Arrow files.

Errors are one-line `InputError`s with the file and the physical line, counted by line feeds from 1; in Parquet and
Arrow files the row, from 1.
"""

import codecs
import collections
import contextlib
import csv
import itertools
import json
import numbers
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TextIO

from kmha.errors import InputError, did_you_mean, format_names, require_package
from kmha.input_files import open_input
from training.io.conll import count_columns, read_sentences
from training.io.disk import open_lines

MAX_FIELD_CHARS = 1 << 24
"""Longest CSV field, characters. A quote left open would otherwise read the whole file into one field."""

FEWEST_ROWS, MOST_ROWS, BLOCK_CHARS = 16, 1024, 1 << 22
"""Rows of the first block and of any block, and how many characters a block should have at most."""

_JSON_KINDS = {dict: "an object", list: "a list", bool: "true or false", type(None): "null", str: "a string"}

_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_JSON_SUFFIXES = (".jsonl", ".json")
_TEXT_SUFFIXES = (".txt",)
TEXT = "text"
PARQUET = ".parquet"
_ARROW_SUFFIXES = (PARQUET, ".arrow", ".feather")
_CONLL_SUFFIXES = (".conll", ".bio", ".iob", ".conllu")
# A name in a first line that is a row and no header: a number, or a text of three words or more.
_VALUE = re.compile(r"\s*(-?[0-9]+([.,][0-9]+)?|(\S+\s+){2,}\S+)\s*")


# Of pandas.NA and pandas.NaT.
_MISSING_TYPES = ("NAType", "NaTType")


@dataclass(frozen=True)
class TableFormat:
    """How a data file is read. Raises InputError for a delimiter or an encoding that cannot be used."""

    delimiter: str = ""  # of CSV and TSV files; empty: by the file's suffix
    encoding: str = ""  # empty: UTF-8

    def __post_init__(self):
        if self.delimiter and (len(self.character) != 1 or self.character in '"\r\n'):
            raise InputError(f"--data.delimiter: expected one character, got {self.delimiter!r}")
        try:
            codecs.lookup(self.encoding or "utf-8")
        except LookupError:
            hint = "; for example utf-8, cp1252 or utf-16"
            raise InputError(
                f"--data.encoding: expected a text encoding, got {self.encoding!r}{hint}"
            ) from None

    @property
    def character(self) -> str:
        """The delimiter as one character; empty: by the file's suffix."""
        return "\t" if self.delimiter == "\\t" else self.delimiter


DEFAULT_FORMAT = TableFormat()
_TERMINATOR = "\r\n"


class _LineFeeds:
    """A file whose rows end in a line feed in place of `csv`'s line terminator."""

    def __init__(self, file: TextIO):
        self._file = file

    def write(self, row: str) -> int:
        """Writes one row."""
        return self._file.write(f"{row.removesuffix(_TERMINATOR)}\n")


def table_writer(file: TextIO, delimiter: str = ",") -> Any:
    """A `csv.writer` of rows that end in a line feed.

    `csv` quotes the characters of its line terminator only: with a line feed alone, a carriage return in a text would
    not be quoted, and `read_rows` would refuse the file.
    """
    return csv.writer(_LineFeeds(file), delimiter=delimiter, lineterminator=_TERMINATOR)


class ColumnNames(list[str]):
    """Names in a header. A name that is not in it matches the one that differs only in case and surrounding blanks."""

    def __contains__(self, name: object) -> bool:
        return self._place(name) is not None

    def index(self, name: str, *bounds: Any) -> int:
        """The position of a name; ValueError if there is none."""
        place = self._place(name)
        return super().index(name, *bounds) if place is None else place

    def _place(self, name: object) -> int | None:
        if not isinstance(name, str):
            return None
        if super().__contains__(name):
            return super().index(name)
        same = [place for place, each in enumerate(self) if _plain(each) == _plain(name)]
        return same[0] if len(same) == 1 else None


def _plain(name: str) -> str:
    return name.strip().casefold()


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive rows of a table."""

    columns: Mapping[str, Sequence[Any]]  # texts, in JSONL also lists of texts; None where a row lacks it
    lines: Sequence[int]  # physical line at which each row starts


def csv_header(path: Path, delimiter: str, encoding: str = "") -> ColumnNames:
    """Reads the column names; raises InputError if there is no header or the file is unreadable."""
    with open_lines(path, encoding) as lines:
        return _header(path, csv.reader(lines, delimiter=delimiter, strict=True))


def json_keys(path: Path, encoding: str = "") -> list[str]:
    """Reads the keys of the first object of a JSONL file; raises InputError if there is none."""
    with open_lines(path, encoding) as lines:
        for number, line in enumerate(lines, start=1):
            if not line.isspace():
                return list(_json_object(line, f"{path}:{number}"))
    raise InputError(f"{path}: expected one JSON object per line, got an empty file")


def csv_blocks(
    path: Path, delimiter: str, required: Sequence[str], optional: Sequence[str] = (), encoding: str = ""
) -> Iterator[Block]:
    """Streams the rows of a CSV or TSV file; rows before an invalid row are yielded before the InputError."""
    csv.field_size_limit(max(csv.field_size_limit(), MAX_FIELD_CHARS))
    with open_lines(path, encoding) as lines:
        # strict: an unclosed quote is an error, not one field with the rest of the file.
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
        names = _header(path, reader)
        for name in required:
            if name not in names:
                raise_missing(str(path), name, names)
        places = {name: names.index(name) for name in (*required, *optional) if name in names}
        first_line, most, found, problem, going_on = reader.line_num + 1, FEWEST_ROWS, False, "", True
        while going_on:
            rows: list[list[str]] = []
            try:
                # Rows read before an error stay in the list.
                rows.extend(itertools.islice(reader, most))
            except csv.Error as error:
                problem = _csv_problem(path, _line_behind(rows, first_line), reader.line_num, error)
            going_on = len(rows) == most and not problem
            numbers = _first_lines(rows, first_line, reader.line_num)
            first_line = reader.line_num + 1
            if rows and set(map(len, rows)) != {len(names)}:
                rows, numbers, wrong = _whole_rows(rows, numbers, names)
                if wrong:
                    problem, going_on = f"{path}:{wrong}", False
            if rows:
                found = True
                columns = list(zip(*rows, strict=True))
                yield Block({name: columns[place] for name, place in places.items()}, numbers)
                most = _next_rows(most, sum(sum(map(len, columns[place])) for place in places.values()))
        if problem:
            raise InputError(problem)
        if not found:
            raise InputError(f"{path}: expected rows, got nothing after the header")


def json_blocks(
    path: Path, required: Sequence[str], optional: Sequence[str] = (), encoding: str = ""
) -> Iterator[Block]:
    """Streams the rows of a JSONL file; arguments and errors are those of `csv_blocks`."""
    columns: dict[str, list[Any]] = {name: [] for name in (*required, *optional)}
    numbers: list[int] = []
    chars, most, found = 0, FEWEST_ROWS, False
    with open_lines(path, encoding) as lines:
        for number, line in enumerate(lines, start=1):
            if line.isspace():
                continue
            try:
                values = parse_json_row(line, required, optional, f"{path}:{number}")
            except InputError:
                if numbers:
                    yield Block(columns, numbers)
                raise
            for name, column in columns.items():
                column.append(values.get(name))
            numbers.append(number)
            chars += len(line)
            if len(numbers) == most or chars >= BLOCK_CHARS:
                yield Block(columns, numbers)
                most = _next_rows(most, chars)
                columns, numbers, chars, found = {name: [] for name in columns}, [], 0, True
    if numbers:
        yield Block(columns, numbers)
    elif not found:
        raise InputError(f"{path}: expected one JSON object per line, got an empty file")


@contextlib.contextmanager
def _open_arrow(path: Path) -> Iterator[Any]:
    """Opens a Parquet or Arrow file as `pyarrow.parquet.ParquetFile` or a reader of `pyarrow.ipc`."""
    require_package("pyarrow", str(path), "tables")
    import pyarrow
    import pyarrow.parquet

    try:
        with open_input(path) as file:
            if path.suffix.lower() == PARQUET:
                yield pyarrow.parquet.ParquetFile(file)
                return
            # Hugging Face writes streams, all others files.
            is_file = file.read(6) == b"ARROW1"
            file.seek(0)
            yield pyarrow.ipc.open_file(file) if is_file else pyarrow.ipc.open_stream(file)
    except pyarrow.ArrowException as error:
        raise InputError(f"{path}: expected a {path.suffix} file, got other data ({error})") from None
    except OSError as error:
        raise InputError(
            f"{path}: expected a readable file, got an error: {error.strerror or error}"
        ) from None


def _arrow_names(reader: Any) -> ColumnNames:
    # The schema of Parquet names the leaves of nested columns.
    return ColumnNames(getattr(reader, "schema_arrow", reader.schema).names)


def _arrow_batches(reader: Any, most: int) -> Iterator[Any]:
    if hasattr(reader, "iter_batches"):
        yield from reader.iter_batches(most)
        return
    count = getattr(reader, "num_record_batches", None)
    batches = reader if count is None else map(reader.get_batch, range(count))
    for batch in batches:
        for first in range(0, len(batch), most):
            yield batch.slice(first, most)


def arrow_blocks(path: Path, required: Sequence[str], optional: Sequence[str] = ()) -> Iterator[Block]:
    """Streams the rows of a Parquet or Arrow file; arguments and errors are those of `csv_blocks`."""
    first = 1
    with _open_arrow(path) as reader:
        names = _arrow_names(reader)
        for name in required:
            if name not in names:
                raise_missing(str(path), name, names)
        places = {name: names[names.index(name)] for name in (*required, *optional) if name in names}
        for batch in _arrow_batches(reader, MOST_ROWS):
            rows = []
            for number, record in enumerate(
                batch.select(list(dict.fromkeys(places.values()))).to_pylist(), first
            ):
                values = {name: record[place] for name, place in places.items()}
                rows.append(_values_as_text(values, list(places), f"{path}:{number}"))
            if rows:
                yield Block(
                    {name: [row[name] for row in rows] for name in places}, range(first, first + len(rows))
                )
            first += len(rows)
    if first == 1:
        raise InputError(f"{path}: expected rows, got none")


def _values_as_text(values: dict[str, Any], names: Sequence[str], place: str) -> dict[str, str | list[str]]:
    """Values of Python as those of a JSONL file."""
    refuse_missing_values(values, place)
    try:
        return parse_json_row(json.dumps(values, ensure_ascii=False, allow_nan=False), names, (), place)
    except (TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{place}: expected texts, numbers or lists of these, got others ({error})"
        ) from None


def refuse_missing_values(values: Mapping[str, Any], place: str) -> None:
    """Raises InputError for None, NaN and the missing values of pandas."""
    for name, value in values.items():
        is_nan = isinstance(value, numbers.Real) and value != value
        if value is None or is_nan or type(value).__name__ in _MISSING_TYPES:
            raise InputError(
                f"{place}: expected a value for {name!r}, got {value}, a missing value; remove the row or fill it in"
            )


def raise_missing(place: str, name: str, names: Sequence[str]) -> NoReturn:
    """Raises the InputError for a missing column, with a suggestion."""
    hint = did_you_mean(name, names, "{!r}") or header_hint(names)
    raise InputError(f"{place}: expected column {name!r}, got columns {format_names(names, '(none)')}{hint}")


def header_hint(names: Sequence[str]) -> str:
    """A hint to append to a message about a missing column, if the names look like values."""
    if any(map(_VALUE.fullmatch, names)):
        return "; line 1 looks like data: add a header line with the names of the columns"
    return ""


def _header(path: Path, reader: Any) -> ColumnNames:
    try:
        names = next(filter(None, reader), None)
    except csv.Error as error:
        raise InputError(_csv_problem(path, 1, reader.line_num, error)) from None
    if names is None:
        raise InputError(f"{path}: expected a header line with the column names, got an empty file")
    # Spreadsheets often export several unnamed columns, which are harmless.
    repeated = sorted(name for name, count in collections.Counter(names).items() if name and count > 1)
    if repeated:
        raise InputError(f"{path}:{reader.line_num}: expected unique column names, got {repeated[0]!r} twice")
    if len(names) == 1:
        counts = {each: names[0].count(each) for each in ",;\t|" if each in names[0]}
        if counts:
            # repr shows a tab as \t.
            looks, given = (
                f"{each!r}" for each in (max(counts, key=counts.__getitem__), reader.dialect.delimiter)
            )
            raise InputError(
                f"{path}:{reader.line_num}: expected columns separated by {given}, got one column; the line looks"
                f" separated by {looks}: --data.delimiter {looks}"
            )
    return ColumnNames(names)


def _next_rows(rows: int, chars: int) -> int:
    """Number of rows of the next block, given the rows and characters of the current one."""
    return min(MOST_ROWS, 2 * rows, max(1, BLOCK_CHARS * rows // max(1, chars)))


def _line_behind(rows: Sequence[Sequence[str]], line: int) -> int:
    """The line after these rows, the first of which starts at `line`."""
    # Every other line feed is inside a field.
    return line + len(rows) + sum(field.count("\n") for fields in rows for field in fields)


def _first_lines(rows: Sequence[Sequence[str]], line: int, last_line: int) -> Sequence[int]:
    """The line at which each row starts, for rows from `line` to `last_line`."""
    if last_line - line + 1 == len(rows):
        # No field contains a line feed.
        return range(line, last_line + 1)
    counts = [1 + sum(field.count("\n") for field in fields) for fields in rows]
    return list(itertools.accumulate(counts[:-1], initial=line))


def _whole_rows(
    rows: Sequence[list[str]], lines: Sequence[int], names: Sequence[str]
) -> tuple[list[list[str]], list[int], str]:
    """The non-blank rows before the first invalid one, their lines, and the error of the invalid row."""
    valid, numbers, width = [], [], len(names)
    for fields, line in zip(rows, lines, strict=True):
        if len(fields) == width:
            valid.append(fields)
            numbers.append(line)
        elif len(fields) > 1 or (fields and fields[0].strip()):
            count = f"expected {width} field{'s' if width > 1 else ''} ({format_names(names)})"
            return valid, numbers, f"{line}: {count}, got {len(fields)}"
    return valid, numbers, ""


def _csv_problem(path: Path, first_line: int, last_line: int, error: csv.Error) -> str:
    text = str(error)
    if "unexpected end" in text:
        problem = "expected a closing quote, got the end of the file in the quoted field that starts here"
    elif "field limit" in text:
        problem = (
            f"expected a field of at most {csv.field_size_limit()} characters, got more (an open quote?)"
        )
    elif "new-line" in text:
        problem = r"expected lines that end in \n or \r\n, got a lone \r outside quotes"
    else:
        problem = f'expected quotes in a quoted field written as "", got a single quote at line {last_line}'
    return f"{path}:{first_line}: {problem}"


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


# Numbers stay text: no rounding, no limit on digits.
_decode = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=_refuse_constant).decode


def _json_object(line: str, place: str) -> dict[str, Any]:
    try:
        record = _decode(line)
    except (ValueError, RecursionError) as error:
        problem = (
            f"{error.msg} at position {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else error
        )
        raise InputError(f"{place}: expected one JSON object per line, got other text ({problem})") from None
    if not isinstance(record, dict):
        raise InputError(f"{place}: expected one JSON object per line, got {_JSON_KINDS[type(record)]}")
    return record


def parse_json_row(
    line: str, required: Sequence[str], optional: Sequence[str], place: str
) -> dict[str, str | list[str]]:
    """The values of these columns in a JSON object, as in `Row`; raises InputError with the place of the line."""
    record = _json_object(line, place)
    for name in required:
        if name not in record:
            raise_missing(place, name, list(record))
    values = {
        name: _json_value(record[name], name, place) for name in (*required, *optional) if name in record
    }
    # Only an escape can produce a lone surrogate, which UTF-8 cannot encode.
    if "\\ud" in line or "\\uD" in line:
        _check_encodable(values, place)
    return values


def _json_value(value: Any, name: str, place: str) -> str | list[str]:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return value
    if isinstance(value, list) and all(map(_is_span, value)):
        return [json.dumps(each, ensure_ascii=False, allow_nan=False) for each in value]
    given = "a list with other things" if isinstance(value, list) else _JSON_KINDS[type(value)]
    raise InputError(f"{place}: expected a string, a number or a list of strings for {name!r}, got {given}")


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
                f"{place}: expected whole characters for {name!r}, got half a surrogate pair"
            ) from None


@dataclass(frozen=True, slots=True)
class Row:
    """One record of a table.

    A value is a text, or a list of texts (JSONL lists, sequence features, words). In a list of spans, each text is
    the JSON of one item with its numbers as strings: `{"start": "0", "end": "5", "label": "PER"}` or `["0", "5",
    "PER"]`.
    """

    values: dict[str, str | list[str]]
    place: str  # origin for messages: `train.csv:12`


def read_rows(
    path: Path, required: Sequence[str], optional: Sequence[str] = (), form: TableFormat = DEFAULT_FORMAT
) -> Iterator[Row]:
    """Streams the rows of a file; its suffix selects the format, optionally followed by `.gz`.

    - `.csv`, `.tsv`: quoted as in CSV. Blank lines are skipped.
    - `.jsonl`, `.json`: one object per line. Blank lines are skipped. Numbers become text as written. A list contains
      texts and numbers, or spans: objects with a start and an end, or lists of three items.
    - `.conll`, `.bio`, `.iob`, `.conllu`: one row per sentence (see `training.io.conll`). Columns are named "1", "2",
      …; each value is a list with one entry per word.
    - `.txt`: one row per line, including blank lines, with the single column "text".
    - `.parquet`, `.arrow`, `.feather`: values as in `.jsonl` (extra: tables).

    Columns in `required` must exist. Raises InputError if the file is unusable (at the first step of the iteration)
    or a row is invalid.
    """
    suffix = _format_suffix(path)
    if suffix in _CONLL_SUFFIXES:
        return _conll_rows(path, required, optional, form)
    if suffix in _TEXT_SUFFIXES:
        return _text_rows(path, required, form)
    return _table_rows(path, read_blocks(path, required, optional, form))


def has_blocks(path: Path) -> bool:
    """Whether `read_blocks` supports the file; raises InputError for an unknown suffix."""
    return _format_suffix(path) not in (*_CONLL_SUFFIXES, *_TEXT_SUFFIXES)


def read_blocks(
    path: Path, required: Sequence[str], optional: Sequence[str] = (), form: TableFormat = DEFAULT_FORMAT
) -> Iterator[Block]:
    """Streams the rows of a CSV, TSV, JSONL, Parquet or Arrow file in blocks; see `read_rows`."""
    delimiter = _DELIMITERS.get(_format_suffix(path))
    if delimiter is not None:
        return csv_blocks(path, form.character or delimiter, required, optional, form.encoding)
    if _format_suffix(path) in _ARROW_SUFFIXES:
        return arrow_blocks(path, required, optional)
    return json_blocks(path, required, optional, form.encoding)


def column_names(path: Path, form: TableFormat = DEFAULT_FORMAT) -> list[str]:
    """Column names: header, schema, the keys of the first JSONL object, CoNLL numbers from "1", or "text".

    Raises InputError if the file is missing, empty or not in the format of its suffix.
    """
    suffix = _format_suffix(path)
    if suffix in _CONLL_SUFFIXES:
        return [str(number) for number in range(1, count_columns(path, form.encoding) + 1)]
    if suffix in _TEXT_SUFFIXES:
        with open_lines(path, form.encoding):
            return [TEXT]
    if suffix in _DELIMITERS:
        return csv_header(path, form.character or _DELIMITERS[suffix], form.encoding)
    if suffix in _ARROW_SUFFIXES:
        with _open_arrow(path) as reader:
            return _arrow_names(reader)
    return json_keys(path, form.encoding)


def is_jsonl(path: Path) -> bool:
    """Whether each line of the file is a JSON object; raises InputError for an unknown suffix."""
    return _format_suffix(path) in _JSON_SUFFIXES


def _format_suffix(path: Path) -> str:
    name = path.name.lower().removesuffix(".gz")
    suffix = name[name.rfind(".") :] if "." in name else ""
    if suffix not in (*_DELIMITERS, *_JSON_SUFFIXES, *_CONLL_SUFFIXES, *_TEXT_SUFFIXES, *_ARROW_SUFFIXES):
        expected = (
            ".csv, .tsv, .jsonl, .json, .conll, .bio, .iob, .conllu or .txt (each also with .gz), or .parquet"
        )
        raise InputError(f"{path}: expected a name that ends in {expected}, got {suffix or 'no suffix'}")
    return suffix


def _table_rows(path: Path, blocks: Iterator[Block]) -> Iterator[Row]:
    prefix = f"{path}:"
    for block in blocks:
        names = list(block.columns)
        for line, *values in zip(block.lines, *block.columns.values(), strict=True):
            given = {name: value for name, value in zip(names, values, strict=True) if value is not None}
            yield Row(given, f"{prefix}{line}")


def _conll_rows(
    path: Path, required: Sequence[str], optional: Sequence[str], form: TableFormat
) -> Iterator[Row]:
    names = column_names(path, form)
    for name in required:
        if name not in names:
            raise_missing(str(path), name, names)
    present = [name for name in dict.fromkeys((*required, *optional)) if name in names]
    for line, columns in read_sentences(path, [names.index(name) for name in present], form.encoding):
        yield Row(dict(zip(present, columns, strict=True)), f"{path}:{line}")


def _text_rows(path: Path, required: Sequence[str], form: TableFormat) -> Iterator[Row]:
    for name in required:
        if name != TEXT:
            raise_missing(str(path), name, (TEXT,))
    found, number = False, 0
    with open_lines(path, form.encoding) as lines:
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
