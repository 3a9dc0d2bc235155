"""Texts or pairs to padded batches of token ids, for runtimes that take ids; NumPy and the standard library only."""

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from export.device.sentences import SentenceTokenizer
from export.device.tokenizer import PairTokenizer, Tokenizer
from kmha.errors import InputError

TOKENIZER = ".tokenizer.json"
TOKEN_IDS, PADDING_MASK = "token_ids", "padding_mask"
BATCH_TOKENS = 8192
MOST_ROWS = 64

Text = str | bytes
# What a model answers: a text, or a pair of texts.
TextRow = Text | Sequence[Text]
TextTokenizer = Tokenizer | PairTokenizer
AnyTokenizer = TextTokenizer | SentenceTokenizer
_TOKENIZERS = {"match": PairTokenizer, "tag": SentenceTokenizer}


def read_tokenizer(model: Path) -> AnyTokenizer:
    """The tokenizer that stands beside a model file: news.tokenizer.json of news.onnx.

    Raises:
        InputError: None stands there, or it cannot be read.
    """
    path = model.with_suffix(TOKENIZER)
    try:
        values = json.loads(path.read_text("utf-8"))
        return _TOKENIZERS.get(values.get("task"), Tokenizer)(values)
    except OSError as error:
        raise InputError(
            f"{path}: expected the tokenizer of {model.name}, {error.strerror or error}"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = (
            f"not {error}" if isinstance(error, json.JSONDecodeError) else f"{type(error).__name__} {error}"
        )
        raise InputError(
            f"{path}: expected a tokenizer.json of an export, got another file ({reason})"
        ) from error


def read_text_tokenizer(model: Path) -> TextTokenizer:
    """As `read_tokenizer`, but not of a tagger; raises InputError there too."""
    tokenizer = read_tokenizer(model)
    if isinstance(tokenizer, SentenceTokenizer):
        raise InputError(f"{model}: expected a model of texts, got a tagger")
    return tokenizer


def input_names(tokenizer: AnyTokenizer) -> list[tuple[str, ...]]:
    """Names of a model's token ids and of what belongs to them, first of all their masks, in its order."""
    if isinstance(tokenizer, SentenceTokenizer):
        return [tuple(tokenizer.input_names)]
    if isinstance(tokenizer, Tokenizer):
        return [(TOKEN_IDS, PADDING_MASK)]
    return [(ids_name, mask_name) for ids_name, mask_name, _, _ in tokenizer.sides]


def num_texts(tokenizer: AnyTokenizer) -> int:
    """Texts in a row: 1, or 2 where the model takes pairs."""
    return 2 if isinstance(tokenizer, PairTokenizer) else 1


def encoded(tokenizer: TextTokenizer, row: TextRow, length: int | None = None) -> list[list[int]]:
    """Token ids of a text, or of a pair: a list for each of `input_names`.

    Args:
        tokenizer: The model's.
        row: A text, or a pair of them.
        length: Most tokens of each list; None takes the longest the model can read.

    Raises:
        InputError: It is a text where the model wants a pair, or the reverse.
    """
    is_text = isinstance(row, str | bytes)
    if isinstance(tokenizer, Tokenizer) and isinstance(row, str | bytes):
        return [tokenizer.encode(row, length)]
    if isinstance(tokenizer, PairTokenizer) and not is_text and len(row) == 2:
        return tokenizer.encode(row[0], row[1], length)
    expected = "a text" if isinstance(tokenizer, Tokenizer) else "a pair of texts"
    given = "one text" if is_text else f"{len(row)} texts"
    raise InputError(f"expected {expected} a row, got {given}")


def shown_ids(rows: Sequence[list[list[int]]]) -> list[Any]:
    """Of each row of `encoded` its ids, or where there are several inputs a list for each of them."""
    return [row[0] if len(row) == 1 else row for row in rows]


def fed(
    tokenizer: TextTokenizer, rows: Sequence[list[list[int]]], lengths: Sequence[int] | None = None
) -> dict[str, np.ndarray]:
    """A model's inputs.

    Args:
        tokenizer: The model's.
        rows: What `encoded` gives of each row.
        lengths: T of each of `input_names`; None pads each to its longest row.

    Returns:
        Token ids and masks int32 [b, T] by name.
    """
    inputs = {}
    for index, (ids_name, mask_name, *_) in enumerate(input_names(tokenizer)):
        part = tokenizer if isinstance(tokenizer, Tokenizer) else tokenizer.sides[index][3]
        length = None if lengths is None else lengths[index]
        inputs[ids_name], inputs[mask_name] = padded(part, [row[index] for row in rows], length)
    return inputs


def batches(rows: Sequence[list[list[int]]]) -> Iterator[np.ndarray]:
    """Rows of similar lengths together; single texts shortest first.

    Args:
        rows: What `encoded` gives of each row.

    Yields:
        Row numbers, integers [b].
    """
    if not rows:
        return
    lengths = np.array([[len(ids) for ids in row] for row in rows], np.int64)
    first, rest = lengths[:, 0], lengths[:, 1:].sum(axis=1)
    strips = 1
    if lengths.shape[1] > 1:
        # Strips of similar first texts, each by its second ones: as many strips as batches in a strip.
        strips = math.ceil(math.sqrt(len(rows) / MOST_ROWS))
    for strip in np.array_split(np.argsort(first, kind="stable"), strips):
        yield from _cut(strip[np.argsort(rest[strip], kind="stable")], lengths)


def _cut(order: np.ndarray, lengths: np.ndarray) -> Iterator[np.ndarray]:
    """Row numbers in their order, as many in one as the budget of tokens allows."""
    first = 0
    while first < len(order):
        last, longest = first + 1, lengths[order[first]]
        while last < len(order) and last - first < MOST_ROWS:
            longest = np.maximum(longest, lengths[order[last]])
            if (last - first + 1) * longest.sum() > BATCH_TOKENS:
                break
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
