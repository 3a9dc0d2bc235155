"""Padded batches of token ids of texts or pairs, for runtimes that take ids; NumPy and the standard library only."""

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from export.device.sentences import SentenceTokenizer
from export.device.tokenizer import PairTokenizer, Tokenizer
from kmha.errors import InputError
from kmha.features import PADDING_MASK, TOKEN_IDS

TOKENIZER = ".tokenizer.json"
BATCH_TOKENS = 8192
MOST_ROWS = 64

Text = str | bytes
# An input row: a text, or a pair of texts.
TextRow = Text | Sequence[Text]
TextTokenizer = Tokenizer | PairTokenizer
AnyTokenizer = TextTokenizer | SentenceTokenizer
_TOKENIZERS = {"match": PairTokenizer, "tag": SentenceTokenizer}


def read_tokenizer(model: Path) -> AnyTokenizer:
    """The tokenizer next to a model file: news.tokenizer.json of news.onnx.

    Raises:
        InputError: There is none, or it cannot be read.
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
    """As `read_tokenizer`; also raises InputError for a tagger."""
    tokenizer = read_tokenizer(model)
    if isinstance(tokenizer, SentenceTokenizer):
        raise InputError(f"{model}: expected a model of texts, got a tagger")
    return tokenizer


def input_names(tokenizer: AnyTokenizer) -> list[tuple[str, ...]]:
    """Names of a model's inputs, grouped by token ids: the ids, their mask, and other inputs of a tagger."""
    if isinstance(tokenizer, SentenceTokenizer):
        return [tuple(tokenizer.input_names)]
    if isinstance(tokenizer, Tokenizer):
        return [(TOKEN_IDS, PADDING_MASK)]
    return [(ids_name, mask_name) for ids_name, mask_name, _, _ in tokenizer.sides]


def num_texts(tokenizer: AnyTokenizer) -> int:
    """Texts in a row: 1, or 2 for pairs."""
    return 2 if isinstance(tokenizer, PairTokenizer) else 1


def encode_row(tokenizer: TextTokenizer, row: TextRow, length: int | None = None) -> list[list[int]]:
    """Token ids of a text, or of a pair: a list for each of `input_names`.

    Args:
        tokenizer: The model's tokenizer.
        row: A text, or a pair of texts.
        length: Most tokens of each list; None: the model's longest.

    Raises:
        InputError: The row is a text and the model takes pairs, or the reverse.
    """
    is_text = isinstance(row, str | bytes)
    if isinstance(tokenizer, Tokenizer) and isinstance(row, str | bytes):
        return [tokenizer.encode(row, length)]
    if isinstance(tokenizer, PairTokenizer) and not is_text and len(row) == 2:
        return tokenizer.encode(row[0], row[1], length)
    expected = "a text" if isinstance(tokenizer, Tokenizer) else "a pair of texts"
    got = "one text" if is_text else f"{len(row)} texts"
    raise InputError(f"expected {expected} a row, got {got}")


def ids_by_row(rows: Sequence[list[list[int]]]) -> list[Any]:
    """The ids of each row of `encode_row`; a list for each input if there are several."""
    return [row[0] if len(row) == 1 else row for row in rows]


def model_inputs(
    tokenizer: TextTokenizer, rows: Sequence[list[list[int]]], lengths: Sequence[int] | None = None
) -> dict[str, np.ndarray]:
    """A model's inputs.

    Args:
        tokenizer: The model's tokenizer.
        rows: What `encode_row` returns of each row.
        lengths: T of each of `input_names`; None pads each to its longest row.

    Returns:
        Token ids and masks int32 [b, T] by name.
    """
    inputs = {}
    for index, (ids_name, mask_name, *_) in enumerate(input_names(tokenizer)):
        part = tokenizer if isinstance(tokenizer, Tokenizer) else tokenizer.sides[index][3]
        length = None if lengths is None else lengths[index]
        inputs[ids_name], inputs[mask_name] = pad_ids(part, [row[index] for row in rows], length)
    return inputs


def length_batches(rows: Sequence[list[list[int]]]) -> Iterator[np.ndarray]:
    """Batches of rows of similar length; single texts shortest first.

    Args:
        rows: What `encode_row` returns of each row.

    Yields:
        Row numbers, integers [b].
    """
    if not rows:
        return
    lengths = np.array([[len(ids) for ids in row] for row in rows], np.int64)
    first, rest = lengths[:, 0], lengths[:, 1:].sum(axis=1)
    strips = 1
    if lengths.shape[1] > 1:
        # Strips of similar first texts, each sorted by second texts: as many strips as batches in a strip.
        strips = math.ceil(math.sqrt(len(rows) / MOST_ROWS))
    for strip in np.array_split(np.argsort(first, kind="stable"), strips):
        yield from _by_budget(strip[np.argsort(rest[strip], kind="stable")], lengths)


def _by_budget(order: np.ndarray, lengths: np.ndarray) -> Iterator[np.ndarray]:
    """Splits row numbers, in their order, into batches within the budget of tokens."""
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


def pad_ids(
    tokenizer: Tokenizer, ids: Sequence[Sequence[int]], length: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Token ids and padding mask, int32 [b, T] each; T is `length`, else that of the longest row."""
    longest = max(map(len, ids)) if length is None else length
    pairs = [tokenizer.pad(list(row), longest) for row in ids]
    token_ids, masks = zip(*pairs, strict=True)
    return np.array(token_ids, np.int32), np.array(masks, np.int32)
