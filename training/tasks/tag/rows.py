"""Converts rows of files to tagged sentences: words with tags, or a text with character spans."""

import json
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from kmha.bundle.manifest import TAG
from kmha.errors import InputError, format_names, shorten
from kmha.tags import Span, tags_of
from training.io.examples import Columns, Example, ExampleSet
from training.io.tables import Row
from training.tasks.columns import column_hint

WORDS, TAGS = "words", "tags"
TEXT, SPANS = "text", "spans"
_CONLLU_COLUMNS, _CONLLU_WORD, _CONLLU_TAG = 10, "2", "4"
_SHOWN_CHARS = 80
_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,18}")

Split = Callable[[str], Sequence[tuple[int, int]]]
"""Splits a text into words: first and last character plus 1 of each, in order."""


class _Given(NamedTuple):
    first: int
    end: int
    label: str


def tag_columns(available: Sequence[str] | None, columns: Columns) -> Columns:
    """The columns of sentences, with default names for empty ones; None: the file's columns are unknown.

    Defaults are `words` and `tags`, or `text` and `spans`. With numbered columns, as in CoNLL files, words are in the
    first and tags in the last column; with ten columns, as in CoNLL-U files, in the second and the fourth.
    Raises InputError if a column is missing, or is used for both.
    """
    text, label = columns.text, columns.label
    if available is not None and _numbered(available):
        conllu = len(available) == _CONLLU_COLUMNS
        text = text or (_CONLLU_WORD if conllu else available[0])
        label = label or (_CONLLU_TAG if conllu else available[-1])
    else:
        names = (WORDS, TAGS, TEXT, SPANS) if available is None else available
        text = text or (TEXT if TEXT in names and WORDS not in names else WORDS)
        spans = SPANS in names and (TAGS not in names or text == TEXT)
        label = label or (SPANS if spans or (text == TEXT and TAGS not in names) else TAGS)
    found = Columns(text, label, columns.separator)
    for name, flag in ((text, "text-column"), (label, "label-column")):
        if available is not None and name not in available:
            raise InputError(_missing(name, flag, available))
    if text == label:
        raise InputError(
            f"--data.label-column: expected a column of tags, got {label}, the column of the words"
        )
    return found


def sentence_example(row: Row, columns: Columns, split: Split) -> Example:
    """The sentence of a row: its words, joined by line feeds, and their tags in order, for spans in the scheme BIO.

    If the row's text is a list, it has the words, and the labels are their tags. If it is one text, the labels are
    spans (see `training.io.tables`) with ends in characters (code points). `split` finds the words of a text; words are
    split where a span begins or ends inside.

    Raises:
        InputError: There is no word; a word is blank or contains a line feed; the numbers of tags and words differ; a
            tag is empty; spans are outside the text, overlap, contain no word or have no label. Names the row's place.
    """
    text, labels = row.values[columns.text], row.values[columns.label]
    if isinstance(labels, str):
        what = f"a list of {'tags' if isinstance(text, list) else 'spans'} (CoNLL or JSONL)"
        raise InputError(f"{row.place}: {columns.label} must be {what}, got one text")
    if isinstance(text, str):
        words, tags = _tag_words(text, _spans(text, labels, row.place, columns), split, row.place, columns)
    else:
        words, tags = text, [tag.strip() for tag in labels]
    if not words:
        raise InputError(f"{row.place}: {columns.text} must hold a word, got none")
    if len(words) != len(tags):
        expected = f"a tag for each of {len(words)} word{'s' if len(words) > 1 else ''}"
        raise InputError(f"{row.place}: {columns.label} must hold {expected}, got {len(tags)}")
    for number, (word, tag) in enumerate(zip(words, tags, strict=True), start=1):
        if not word.strip() or "\n" in word:
            expected = "must hold a visible character and no line feed"
            raise InputError(f"{row.place}: word {number} in {columns.text} {expected}, got {word!r}")
        if not tag:
            raise InputError(f"{row.place}: tag {number} in {columns.label} must be a text, got an empty one")
    return Example(("\n".join(words),), tuple(tags), row.place, ordered=True)


def _numbered(available: Sequence[str]) -> bool:
    return len(available) > 0 and list(available) == [str(number + 1) for number in range(len(available))]


def _missing(name: str, flag: str, available: Sequence[str]) -> str:
    if _numbered(available):
        return f"--data.{flag}: expected one of {format_names(available)}, got {name}"
    hint = column_hint(name, flag, available, TAG)
    defaults = f" (or the columns {TEXT}, {SPANS})" if name in (WORDS, TAGS) else ""
    return f"--data.{flag}: expected a column {name}{defaults}, got {format_names(available)}{hint}"


def _spans(text: str, items: Sequence[str], place: str, columns: Columns) -> list[_Given]:
    """The checked spans of a text, in order."""
    spans = sorted(_span(item, place, columns) for item in items)
    before = None
    for span in spans:
        shown = f"{span.first} to {span.end} ({span.label})"
        if not 0 <= span.first < span.end <= len(text):
            expected = f"spans of one character or more within its {len(text)}"
            raise InputError(f"{place}: {columns.label} must be {expected}, got {shown}")
        if before and span.first < before.end:
            given = f"{before.first} to {before.end} ({before.label}) and {shown}"
            raise InputError(f"{place}: {columns.label} must be spans that do not overlap, got {given}")
        before = span
    return spans


def _span(item: str, place: str, columns: Columns) -> _Given:
    try:
        given = json.loads(item)
    except (ValueError, RecursionError):
        given = None
    item = shorten(item, _SHOWN_CHARS)
    if isinstance(given, dict):
        given = [given.get("start"), given.get("end"), given.get("label")]
    if not isinstance(given, list) or len(given) != 3:
        expected = 'spans: [0, 5, "PER"] or {"start": 0, "end": 5, "label": "PER"}'
        raise InputError(f"{place}: {columns.label} must be {expected}, got {item}")
    first, end, label = given
    if not isinstance(label, str) or not label.strip():
        raise InputError(f"{place}: {columns.label} must be spans whose label is a text, got {item}")
    first, end = str(first), str(end)  # numbers are read as texts
    if not (_WHOLE_NUMBER.fullmatch(first) and _WHOLE_NUMBER.fullmatch(end)):
        raise InputError(f"{place}: {columns.label} must be spans with whole numbers as ends, got {item}")
    return _Given(int(first), int(end), label.strip())


def _tag_words(
    text: str, spans: Sequence[_Given], split: Split, place: str, columns: Columns
) -> tuple[list[str], list[str]]:
    """Words and BIO tags of a text."""
    ends = sorted({end for span in spans for end in (span.first, span.end)})
    pieces, seen = [], 0
    for first, end in split(text):
        while seen < len(ends) and ends[seen] <= first:
            seen += 1
        stop = seen
        while stop < len(ends) and ends[stop] < end:
            stop += 1
        marks = [first, *ends[seen:stop], end]
        pieces += zip(marks, marks[1:], strict=False)
    found, at = [], 0
    for span in spans:
        while at < len(pieces) and pieces[at][0] < span.first:
            at += 1
        begin = at
        while at < len(pieces) and pieces[at][1] <= span.end:
            at += 1
        if begin == at:
            shown = f"{span.first} to {span.end} ({span.label})"
            raise InputError(f"{place}: {columns.label} must be spans that hold a word, got {shown}")
        found.append(Span(begin, at, span.label))
    return [text[first:end] for first, end in pieces], tags_of(found, len(pieces), "bio")


def read_sentences(examples: ExampleSet, rows: np.ndarray) -> list[list[str]]:
    """The words of some rows of a set of sentences."""
    return [text.split("\n") for text in examples.read_texts(rows)]
