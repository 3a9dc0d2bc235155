"""Texts to padded batches of token ids, for runtimes that take ids; nothing but NumPy and the standard library."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from export.device.tokenizer import Tokenizer
from kmha.errors import InputError

TOKENIZER = ".tokenizer.json"
BATCH_TOKENS = 8192
MOST_ROWS = 64


def read_tokenizer(model: Path) -> Tokenizer:
    """The tokenizer that stands beside a model file: news.tokenizer.json of news.onnx.

    Raises:
        InputError: None stands there, or it cannot be read.
    """
    path = model.with_suffix(TOKENIZER)
    try:
        return Tokenizer.read(path)
    except OSError as error:
        raise InputError(
            f"{path}: wanted the tokenizer of {model.name}, {error.strerror or error}"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = (
            f"not {error}" if isinstance(error, json.JSONDecodeError) else f"{type(error).__name__} {error}"
        )
        raise InputError(
            f"{path}: wanted a tokenizer.json of an export, given another file ({reason})"
        ) from error


def batches(ids: Sequence[Sequence[int]]) -> Iterator[np.ndarray]:
    """Rows of similar length together, shortest first.

    Args:
        ids: Token ids of each row.

    Yields:
        Row numbers, integers [b].
    """
    lengths = np.array([len(row) for row in ids], np.int64)
    order = np.argsort(lengths, kind="stable")
    first = 0
    while first < len(order):
        last = first + 1
        while (
            last < len(order)
            and last - first < MOST_ROWS
            and (last - first + 1) * lengths[order[last]] <= BATCH_TOKENS
        ):
            last += 1
        yield order[first:last]
        first = last


def padded(
    tokenizer: Tokenizer, ids: Sequence[Sequence[int]], length: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Token ids and padding mask, int32 [b, T] each; T is `length`, else that of the longest row."""
    longest = max(map(len, ids)) if length is None else length
    pairs = [tokenizer.pad(list(row), longest) for row in ids]
    token_ids, masks = zip(*pairs, strict=True)
    return np.array(token_ids, np.int32), np.array(masks, np.int32)
