"""An ONNX file in onnxruntime with the device's tokenizer; no TensorFlow."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from export.benchmark.timed import Timed
from export.onnx.session import PADDING_MASK, PROBABILITIES, TOKEN_IDS, open_session
from export.predictors.token_batches import encoded, fed, read_text_tokenizer


def load(path: str, threads: int, sizes: dict[str, Any]) -> Timed:
    """Loads a file and the tokenizer.json beside it.

    Args:
        path: Of the .onnx file.
        threads: Of the runtime.
        sizes: Unused.

    Raises:
        InputError: It is not a model that `export.onnx` wrote, or the tokenizer is missing.
    """
    session = open_session(Path(path), threads)
    tokenizer = read_text_tokenizer(Path(path))

    def from_ids(token_ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        (answer,) = session.run([PROBABILITIES], {TOKEN_IDS: token_ids, PADDING_MASK: mask})
        return np.asarray(answer)

    def from_texts(texts: Sequence[bytes]) -> np.ndarray:
        inputs = fed(tokenizer, [encoded(tokenizer, text) for text in texts])
        return from_ids(inputs[TOKEN_IDS], inputs[PADDING_MASK])

    return Timed(from_ids, from_texts)
