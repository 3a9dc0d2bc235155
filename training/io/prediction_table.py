"""Tables with predictions: reads all columns of a table, and writes its rows with the columns of the predictions."""

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from kmha.errors import InputError, require_package
from kmha.input_files import parse_json
from training.io.disk import atomic_write, open_lines
from training.io.tables import (
    PARQUET,
    TableFormat,
    column_names,
    is_jsonl,
    parse_json_row,
    raise_missing,
    read_rows,
    table_writer,
)

SUFFIXES = (".csv", ".tsv", ".jsonl", PARQUET)
INPUT_PREFIX = "input_"
"""Prefix of a column of the input that has the name of a column of the predictions."""
_SEPARATOR = "|"
_CHUNK_ROWS = 4096

Value = str | list[str]


def read_records(
    path: Path, required: Sequence[str], form: TableFormat
) -> Iterator[tuple[dict[str, Any], list[Value]]]:
    """Yields each row of a table with all columns, and its values of the required columns; errors as in `read_rows`."""
    if is_jsonl(path):
        with open_lines(path, form.encoding) as lines:
            for number, line in enumerate(lines, start=1):
                if not line.isspace():
                    values = parse_json_row(line, required, (), f"{path}:{number}")
                    yield parse_json(line, f"{path}:{number}"), [values[name] for name in required]
        return
    names = column_names(path, form)
    for name in required:
        if name not in names:
            raise_missing(str(path), name, names)
    places = [names[names.index(name)] for name in required]
    for row in read_rows(path, list(dict.fromkeys(names)), form=form):
        yield dict(row.values), [row.values[name] for name in places]


def add_prediction(record: dict[str, Any], prediction: dict[str, Any]) -> dict[str, Any]:
    """The columns of a row, followed by those of its prediction."""
    renamed = {
        f"{INPUT_PREFIX}{name}" if name in prediction else name: value for name, value in record.items()
    }
    return renamed | prediction


def check_output(path: Path) -> None:
    """Raises InputError if the suffix of a file to write is unknown, or its package is not installed."""
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(
            f"--out {path}: expected a name that ends in {', '.join(SUFFIXES)}, got {path.suffix or 'no suffix'}"
        )
    if path.suffix.lower() == PARQUET:
        require_package("pyarrow", f"--out {path}", "tables")


def write_records(path: Path, records: Iterable[dict[str, Any]], overwrite: bool) -> None:
    """Writes rows to a table in the format of its suffix; an error leaves no file.

    In CSV and TSV files the texts of a list are separated by "|"; other lists and objects are JSON.
    """
    with atomic_write(path, overwrite, "--out") as partial:
        suffix = path.suffix.lower()
        if suffix == PARQUET:
            _write_parquet(partial, iter(records))
        else:
            with open(partial, "w", encoding="utf-8", newline="") as file:
                if suffix == ".jsonl":
                    file.writelines(
                        f"{json.dumps(record, ensure_ascii=False, allow_nan=False)}\n" for record in records
                    )
                else:
                    writer = table_writer(file, "\t" if suffix == ".tsv" else ",")
                    names: list[str] = []
                    for record in records:
                        if not names:
                            names = list(record)
                            writer.writerow(names)
                        writer.writerow([_cell(record.get(name)) for name in names])


def _cell(value: Any) -> Any:
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return _SEPARATOR.join(value)
    return (
        json.dumps(value, ensure_ascii=False, allow_nan=False)
        if isinstance(value, list | dict | bool)
        else value
    )


def _write_parquet(path: Path, records: Iterator[dict[str, Any]]) -> None:
    import pyarrow
    import pyarrow.parquet

    writer = None
    try:
        while chunk := list(itertools.islice(records, _CHUNK_ROWS)):
            table = pyarrow.Table.from_pylist(chunk, writer.schema if writer else None)
            writer = writer or pyarrow.parquet.ParquetWriter(path, table.schema)
            writer.write_table(table)
    except pyarrow.ArrowException as error:
        raise InputError(
            f"--out {path.name}: expected values of one type in a column, got {error}"
        ) from error
    finally:
        if writer is not None:
            writer.close()
