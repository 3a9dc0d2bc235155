"""Rows of texts as a bundle is asked them: checked, in columns, some at a time."""

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from kmha.errors import InputError

CHUNK_ROWS = 1024

Text = str | bytes
# What a model answers: a text, a pair of texts, or the words of a sentence.
TextRow = Text | Sequence[Text]
Row = TypeVar("Row")


def chunks(texts: Iterator[Row], size: int) -> Iterator[list[Row]]:
    """The rows of a stream, so many at a time; those before an InputError come before it."""
    chunk: list[Row] = []
    wrong = None
    try:
        for text in texts:
            chunk.append(text)
            if len(chunk) == size:
                yield chunk
                chunk = []
    except InputError as error:
        wrong = error
    yield chunk
    if wrong is not None:
        raise wrong


def columns(rows: Sequence[Any], num_texts: int) -> list[list[Any]]:
    """The texts of rows, column by column; raises InputError where a row has another number of them."""
    if num_texts == 1:
        return [list(rows)]
    for row in rows:
        if not isinstance(row, list | tuple) or len(row) != num_texts:
            given = "one text" if isinstance(row, str | bytes) else type(row).__name__
            raise InputError(f"rows must be pairs of texts, got {given}")
    return [[row[index] for row in rows] for index in range(num_texts)]


def checked_texts(texts: Sequence[str | bytes], most_bytes: int) -> list[bytes]:
    """The texts as bytes, not many more than tokenizing will read.

    Raises:
        InputError: One is no text.
    """
    cut = []
    for text in texts:
        if not isinstance(text, str | bytes):
            raise InputError(f"texts must be strings, got {type(text).__name__}")
        first = text[:most_bytes]
        cut.append(first if isinstance(first, bytes) else first.encode("utf-8", "replace"))
    return cut
