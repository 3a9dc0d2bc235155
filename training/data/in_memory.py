"""Rows of Python objects: data frames, tables, lists and iterables, recognized without importing their libraries."""

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from kmha.bundle.manifest import MATCH, TAG
from kmha.errors import InputError
from training.data.sources import Source
from training.io.tables import ColumnNames, Row, parse_json_row, raise_missing, refuse_missing_values
from training.tasks.match.rows import TEXT_A, TEXT_B
from training.tasks.settings import LABEL, LABELS, TEXT
from training.tasks.tag.rows import SPANS, TAGS, WORDS

# Methods of scalars, arrays, series and tensors that return Python values.
_CONVERSIONS = ("as_py", "tolist", "to_list", "numpy")


def object_source(data: Any, part: str, task: str) -> Source:
    """Source of the rows of an object, which are read once; values become text as in JSONL files.

    Args:
        data: One of
            - a table with named columns: pandas or Polars data frame, PyArrow table, Hugging Face data set, dictionary;
            - (texts, labels): two sequences of one length;
            - an iterable of rows, such as a list, a generator or a `tf.data.Dataset` without batches.

            A row is a dictionary, or (text, label) as the task needs: a text and one label or a list of labels, a pair
            of texts and a label, a list of words and their tags, a text and its spans; or only a text.
        part: "train", "validation" or "test"; errors name it with the type of the object and the row, from 1.
        task: The task of the settings.

    Raises:
        InputError: The object has no rows, or is of another kind. The iteration over the rows raises it for values that
            are no texts, numbers or lists of these.
    """
    name = f"{part} {type(data).__name__}"
    columns = _table_columns(data)
    if columns is not None:
        places = {str(column): column for column in columns}
        if len(places) < len(columns):
            raise InputError(f"{name}: expected unique column names, got {', '.join(map(str, columns))}")
        return Source(
            name,
            ColumnNames(places),
            lambda required: _rows(_records(data, places, required, name), required, name),
        )
    if hasattr(data, "as_numpy_iterator"):
        data = data.as_numpy_iterator()
    elif isinstance(data, tuple) and len(data) == 2:
        data = _zip(data, name)
    if isinstance(data, str | bytes) or not isinstance(data, Iterable):
        raise InputError(
            f"{name}: expected a table, (texts, labels), rows or a path, got {type(data).__name__}"
        )
    rows = iter(data)
    first = next(rows, None)
    if first is None:
        raise InputError(f"{name}: expected rows, got none")
    names, record = _record_form(first, task, name)
    return Source(
        name, names, lambda required: _rows(map(record, itertools.chain([first], rows)), required, name)
    )


def _table_columns(data: Any) -> list[Any] | None:
    """The names of the columns of a table; None for other objects."""
    if isinstance(data, Mapping):
        return list(data)
    # PyArrow's `columns` are the values.
    for attribute in ("column_names", "columns"):
        names = getattr(data, attribute, None)
        if names is not None and hasattr(data, "__getitem__"):
            return list(names)
    return None


def _records(
    data: Any, places: Mapping[str, Any], required: Sequence[str], name: str
) -> Iterator[dict[str, Any]]:
    names = ColumnNames(places)
    for column in required:
        if column not in names:
            raise_missing(name, column, names)
    keys = [places[names[names.index(column)]] for column in required]
    # Of Hugging Face data sets: the names of classes, which are stored as numbers.
    features = getattr(data, "features", None)
    features = features if isinstance(features, Mapping) else {}
    texts = [_class_names(features.get(key)) for key in keys]
    for values in _zip([data[key] for key in keys], name):
        yield {
            column: value if text is None else text(value)
            for column, text, value in zip(required, texts, values, strict=True)
        }


def _class_names(feature: Any) -> Callable[[Any], Any] | None:
    return getattr(getattr(feature, "feature", feature), "int2str", None)


def _zip(columns: Sequence[Any], name: str) -> Iterator[tuple[Any, ...]]:
    try:
        yield from zip(*columns, strict=True)
    except ValueError as error:
        raise InputError(f"{name}: expected columns of the same length, got others ({error})") from None


def _record_form(first: Any, task: str, name: str) -> tuple[list[str], Callable[[Any], Any]]:
    """The column names of rows like the first one, and the function from a row to a record."""
    if isinstance(first, Mapping):
        return [str(column) for column in first], lambda row: row
    if isinstance(first, str | bytes):
        return [TEXT], lambda row: {TEXT: row}
    if not isinstance(first, list | tuple) or len(first) != 2:
        given = f"{len(first)} values" if isinstance(first, list | tuple) else type(first).__name__
        raise InputError(f"{name}:1: expected a dictionary or (text, label), got {given}")
    if task == MATCH:
        return [TEXT_A, TEXT_B, LABEL], lambda row: dict(
            zip((TEXT_A, TEXT_B, LABEL), (*row[0], row[1]), strict=True)
        )
    if task == TAG:
        names = [TEXT, SPANS] if isinstance(first[0], str | bytes) else [WORDS, TAGS]
    else:
        names = [
            TEXT,
            LABEL if isinstance(first[1], str | bytes) or not isinstance(first[1], Iterable) else LABELS,
        ]
    return names, lambda row: dict(zip(names, row, strict=True))


def _rows(records: Iterable[Any], required: Sequence[str], name: str) -> Iterator[Row]:
    for number, record in enumerate(records, start=1):
        place = f"{name}:{number}"
        for column in required:
            if column not in record:
                raise_missing(place, column, list(record))
        values = {column: record[column] for column in required}
        # Scalars of PyArrow may be null.
        values = {
            column: value.as_py() if hasattr(value, "as_py") else value for column, value in values.items()
        }
        refuse_missing_values(values, place)
        try:
            line = json.dumps(values, default=_python_value, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"{place}: expected texts, numbers or lists of these, got others ({error})"
            ) from None
        yield Row(parse_json_row(line, required, (), place), place)


def _python_value(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, set | frozenset):
        return sorted(value)
    for method in _CONVERSIONS:
        if hasattr(value, method):
            return getattr(value, method)()
    raise TypeError(f"a value of the type {type(value).__name__}")
