"""Rows of texts for prediction: validation, chunks of a stream, batches of similar length, functions in a graph."""

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from kmha.errors import InputError

# Rows that are tokenized at once, and the maximum of padded tokens in one batch.
CHUNK_ROWS = 1024
BATCH_TOKENS = 8192

Text = str | bytes
# One input of a model: a text, a pair of texts, or the words of a sentence.
TextRow = Text | Sequence[Text]
Row = TypeVar("Row")
# The type of a batch of texts.
TEXTS = tf.TensorSpec([None], tf.string)


@functools.cache
def _process() -> int:
    """The process that first used a model."""
    return os.getpid()


def check_texts(texts: Any) -> None:
    """Raises InputError unless the texts are a sequence, such as a list; a string is one text."""
    if isinstance(texts, str | bytes) or not hasattr(texts, "__len__"):
        given = "one string" if isinstance(texts, str | bytes) else type(texts).__name__
        raise InputError(f"texts must be a list of strings, got {given}")


def check_process() -> None:
    """Raises InputError in a forked child of a process that used a model: TensorFlow's threads do not exist there."""
    if _process() != os.getpid():
        raise InputError(
            f"expected a process of its own for TensorFlow, got a fork of process {_process()}, which has used it:"
            ' start processes with multiprocessing.get_context("spawn"), or load the bundle after the fork only'
        )


def graph_function(function: Callable, *signature: Any) -> Callable[..., Any]:
    """A `tf.function` with this input signature; without one it is traced for variable shapes on demand.

    It raises InputError in a forked child, where it would wait forever.
    """
    compiled: Any = tf.function(
        function, input_signature=signature or None, autograph=False, reduce_retracing=not signature
    )
    # The functions of all bundles in a process share their code, so that TensorFlow would take them for one.
    compiled._omit_frequent_tracing_warning = True

    def call(*arguments: Any) -> Any:
        check_process()
        return compiled(*arguments)

    return call


def chunks(rows: Iterator[Row], size: int) -> Iterator[list[Row]]:
    """Yields lists of at most `size` rows; rows read before an InputError are yielded before it is raised."""
    chunk: list[Row] = []
    failure = None
    try:
        for row in rows:
            chunk.append(row)
            if len(chunk) == size:
                yield chunk
                chunk = []
    except InputError as error:
        failure = error
    yield chunk
    if failure is not None:
        raise failure


def text_columns(rows: Sequence[Any], num_texts: int) -> list[list[Any]]:
    """Transposes rows to one list per text; raises InputError if a row has a different number of texts."""
    if num_texts == 1:
        return [list(rows)]
    for row in rows:
        if not isinstance(row, list | tuple) or len(row) != num_texts:
            actual = "one text" if isinstance(row, str | bytes) else type(row).__name__
            raise InputError(f"rows must be pairs of texts, got {actual}")
    return [[row[index] for row in rows] for index in range(num_texts)]


def encode_texts(texts: Sequence[Text], max_bytes: int) -> list[bytes]:
    """Encodes texts as UTF-8 and truncates them to about as many bytes as the tokenizer reads."""
    check_process()
    encoded = []
    for text in texts:
        if not isinstance(text, str | bytes):
            raise InputError(f"texts must be strings, got {type(text).__name__}")
        start = text[:max_bytes]
        encoded.append(start if isinstance(start, bytes) else start.encode("utf-8", "replace"))
    return encoded


def length_batches(lengths: np.ndarray, max_tokens: int) -> Iterator[np.ndarray]:
    """Yields the indices of rows of similar length, integers [b], shortest first, to reduce padding.

    A batch has at most `max_tokens` padded tokens; a longer row is a batch of its own.
    """
    order = np.argsort(lengths, kind="stable")
    first = 0
    while first < len(order):
        end = first + 1
        while end < len(order) and (end - first + 1) * lengths[order[end]] <= max_tokens:
            end += 1
        yield order[first:end]
        first = end
