"""An ONNX file in onnxruntime with the device's tokenizer; no TensorFlow."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from export.timing.timed import Timed
from export.token_batches import padded, read_tokenizer
from kmha.errors import InputError

TOKEN_IDS, PADDING_MASK, PROBABILITIES = "token_ids", "padding_mask", "probabilities"


def load(path: str, threads: int, sizes: dict[str, Any]) -> Timed:
    """Loads a file and the tokenizer.json beside it.

    Args:
        path: Of the .onnx file.
        threads: Of the runtime.
        sizes: Unused.

    Raises:
        InputError: It is not a model that `export.onnx` wrote, or the tokenizer is missing.
    """
    session = _session(path, threads)
    tokenizer = read_tokenizer(Path(path))

    def from_ids(token_ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        (answer,) = session.run([PROBABILITIES], {TOKEN_IDS: token_ids, PADDING_MASK: mask})
        return np.asarray(answer)

    def from_texts(texts: Sequence[bytes]) -> np.ndarray:
        return from_ids(*padded(tokenizer, [tokenizer.encode(text) for text in texts]))

    return Timed(from_ids, from_texts)


def _session(path: str, threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has an exception class for each of its states, with no parent.
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(f"{path}: wanted an ONNX file, given another ({reason})") from error
    inputs = [given.name for given in session.get_inputs()]
    if set(inputs) != {TOKEN_IDS, PADDING_MASK}:
        raise InputError(
            f"{path}: wanted a model of {TOKEN_IDS} and {PADDING_MASK}, given one of {', '.join(inputs)}"
        )
    return session
