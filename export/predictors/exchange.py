"""The files through which a predictor in another process gets texts and returns its predictions."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from export.predictors.protocol import Row

TEXTS, LAYERS = "texts.jsonl", "layers.npz"


PROBABILITIES, IDS, FACTS, ERRORS = "probabilities.npy", "token_ids.json", "facts.json", "errors.json"


VECTORS = "vectors.npz"


def read_texts(path: Path, as_sentences: bool = False) -> list[Any]:
    """Texts of a file of JSON strings, or pairs of one of lists; lone surrogates stand for bytes that are no UTF-8.

    Args:
        path: Of the file.
        as_sentences: Whether its lists are the words of sentences.
    """
    rows = (json.loads(line) for line in path.read_text("utf-8").splitlines())
    made = list if as_sentences else tuple
    return [_bytes(row) if isinstance(row, str) else made(map(_bytes, row)) for row in rows]


def write_texts(path: Path, texts: Sequence[Row]) -> None:
    """Writes the file that `read_texts` reads."""
    rows = (_string(row) if isinstance(row, bytes) else list(map(_string, row)) for row in texts)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _string(text: bytes) -> str:
    return text.decode("utf-8", "surrogateescape")
