"""Reads word vectors in text format (word2vec, GloVe) for the tokens of a vocabulary."""

from pathlib import Path

import numpy as np

from kmha.errors import InputError
from kmha.input_files import bounded_lines, open_input
from kmha.text.vocabulary import Vocabulary


def read_vectors(path: Path, vocabulary: Vocabulary, width: int, lower_case: bool) -> dict[int, np.ndarray]:
    """Reads the vectors float32 [width] of the words that are tokens, by id; memory does not grow with the file.

    The file has one word a line, then its numbers, separated by spaces. A first line of two integers (word2vec's count
    and width) is skipped, and so are repetitions of a word. With `lower_case` a word that is not a token is looked up
    in lower case too. An InputError has the line number.
    """
    found: dict[int, np.ndarray] = {}
    exact: set[int] = set()
    try:
        with open_input(path) as file:
            for number, raw in enumerate(bounded_lines(file, path), start=1):
                try:
                    fields = raw.decode("utf-8").rstrip().split(" ")
                except UnicodeDecodeError as error:
                    raise InputError(f"{path}:{number}: expected UTF-8, {error.reason}") from error
                if number == 1 and len(fields) == 2 and all(field.isdigit() for field in fields):
                    continue
                if len(fields) == 1 and not fields[0]:
                    continue
                if len(fields) <= width or (len(fields) > width + 1 and not _is_phrase(fields, width)):
                    raise InputError(
                        f"{path}:{number}: expected vectors of {width} numbers (--encoder.hidden-dim),"
                        f" got {len(fields) - 1}"
                    )
                word = " ".join(fields[: len(fields) - width])
                index = vocabulary.ids.get(word)
                is_exact = index is not None
                if index is None and lower_case:
                    index = vocabulary.ids.get(word.lower())
                if index is None or index in exact or (index in found and not is_exact):
                    continue
                found[index] = _vector(
                    fields[-width:], f"{path}:{number}: expected {width} numbers after {word!r}"
                )
                if is_exact:
                    exact.add(index)
    except OSError as error:
        raise InputError(f"{path}: expected a file of word vectors, {error.strerror or error}") from error
    return found


def _vector(fields: list[str], message: str) -> np.ndarray:
    try:
        with np.errstate(over="ignore"):
            vector = np.array(fields, np.float32)
    except ValueError as error:
        raise InputError(f"{message}, {error}") from error
    if not np.isfinite(vector).all():
        raise InputError(f"{message}, got {fields[int(np.argmin(np.isfinite(vector)))]}")
    return vector


def _is_phrase(fields: list[str], width: int) -> bool:
    """Whether the extra fields are words: some published files have tokens with spaces."""
    try:
        [float(field) for field in fields[1 : len(fields) - width]]
    except ValueError:
        return True
    return False


def assign_vectors(table, vectors: dict[int, np.ndarray]) -> None:
    """Replaces the rows of an embedding table [V, D] for which there are vectors.

    All vectors are scaled by one factor to the standard deviation of the table: much larger token embeddings would
    dominate position and n-gram embeddings.
    """
    if not vectors:
        return
    values = np.array(table.numpy())
    rows = np.stack(list(vectors.values()))
    scale = values.std() / rows.std() if values.std() and rows.std() else 1.0
    values[list(vectors)] = rows * scale
    table.assign(values)
