"""Converts rows of files to pairs of texts. A triplet gives two pairs."""

import dataclasses
import math
from collections.abc import Sequence

from kmha.bundle.manifest import MATCH
from kmha.errors import InputError, format_names
from training.io.examples import Columns, Example
from training.io.tables import Row
from training.tasks.columns import column_hint, refuse_missing_value

TEXT_A, TEXT_B, LABEL, QUERY = "text_a", "text_b", "label", "query_id"
ANCHOR, POSITIVE, NEGATIVE = "anchor", "positive", "negative"
RIGHT, WRONG = "1", "0"
DEFAULT_PAIRS = Columns(TEXT_A, LABEL, text_b=TEXT_B)
DEFAULT_TRIPLETS = Columns(ANCHOR, text_b=POSITIVE, wrong=NEGATIVE)


def pair_columns(available: Sequence[str] | None, columns: Columns) -> Columns:
    """The columns of pairs or triplets, with defaults for empty names; InputError if a known file has neither."""
    requested = columns.text or columns.text_b or columns.label
    query = columns.query or (QUERY if QUERY in (available or ()) else "")
    flags = {query: "query-column"} if query else {}
    if not requested and all(name in (available or ()) for name in DEFAULT_TRIPLETS.required):
        found = dataclasses.replace(DEFAULT_TRIPLETS, separator=columns.separator, query=query)
    else:
        text, label, text_b = columns.text or TEXT_A, columns.label or LABEL, columns.text_b or TEXT_B
        found = Columns(text, label, columns.separator, text_b=text_b, query=query)
        named = {found.text: "text-column", found.text_b: "text-b-column", found.label: "label-column"}
        flags = named | {name: flag for name, flag in flags.items() if name not in named}
    if available is None:
        return found
    for name, flag in flags.items():
        if name not in available:
            hint = column_hint(name, flag, available, MATCH)
            triplets = f" (or the columns {ANCHOR}, {POSITIVE}, {NEGATIVE})" if not requested else ""
            shown = f"{name}{triplets}, got {format_names(available)}{hint}"
            raise InputError(f"--data.{flag}: expected a column {shown}")
    return found


def pair_examples(row: Row, columns: Columns, target: str) -> tuple[Example, ...]:
    """The pair of a row, or both of a triplet; InputError, with its place, for an invalid or missing text or label."""
    a, b = _text(row, columns.text), _text(row, columns.text_b)
    query = _query(row, columns.query) if columns.query in row.values else None
    if columns.wrong:
        wrong = _text(row, columns.wrong)
        return Example((a, b), (RIGHT,), row.place, query), Example((a, wrong), (WRONG,), row.place, query)
    label = row.values[columns.label]
    label = label.strip() if isinstance(label, str) else label
    if not isinstance(label, str) or not label:
        given = "none" if not label else f"{len(label)} labels"
        raise InputError(f"{row.place}: {columns.label} must be one label, got {given}")
    if not fits(label, target):
        expected = "0 or 1" if target == "binary" else "a number"
        raise InputError(f"{row.place}: {columns.label} must be {expected}, got {label!r}")
    refuse_missing_value(label, columns.label, row.place)
    return (Example((a, b), (label,), row.place, query),)


def fits(label: str, target: str) -> bool:
    """Whether a target allows a label; classes and "auto" allow all."""
    value = number(label)
    return value in (0.0, 1.0) if target == "binary" else value is not None or target != "graded"


def number(label: str) -> float | None:
    """The label as a finite number, or None."""
    try:
        value = float(label)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _query(row: Row, column: str) -> str:
    name = row.values[column]
    if isinstance(name, list) or not name.strip():
        given = "a list" if isinstance(name, list) else "none"
        raise InputError(f"{row.place}: {column} must be one name, got {given}")
    return name.strip()


def _text(row: Row, name: str) -> str:
    text = row.values[name]
    if not isinstance(text, str):
        raise InputError(f"{row.place}: {name} must be one text, got a list")
    return text
