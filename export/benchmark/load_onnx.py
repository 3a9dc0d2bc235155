"""Loads an ONNX file in onnxruntime with the device tokenizer, without TensorFlow."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from export.benchmark.loaders import LoadedModel
from export.names import PROBABILITIES
from export.onnx.session import open_session
from export.predictors.token_batches import encode_row, model_inputs, read_text_tokenizer
from kmha.features import PADDING_MASK, TOKEN_IDS


def load(path: str, threads: int, sizes: dict[str, Any]) -> LoadedModel:
    """Loads a file and the tokenizer.json next to it."""
    session = open_session(Path(path), threads)
    tokenizer = read_text_tokenizer(Path(path))

    def from_ids(token_ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        (output,) = session.run([PROBABILITIES], {TOKEN_IDS: token_ids, PADDING_MASK: mask})
        return np.asarray(output)

    def from_texts(texts: Sequence[bytes]) -> np.ndarray:
        inputs = model_inputs(tokenizer, [encode_row(tokenizer, text) for text in texts])
        return from_ids(inputs[TOKEN_IDS], inputs[PADDING_MASK])

    return LoadedModel(from_ids, from_texts)
