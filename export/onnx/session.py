"""Opens an ONNX file that `export.onnx` wrote, with onnxruntime on the processor."""

from collections.abc import Sequence
from pathlib import Path

import onnxruntime

from kmha.errors import InputError

TOKEN_IDS, PADDING_MASK, PROBABILITIES, SCORES = "token_ids", "padding_mask", "probabilities", "scores"
ONE_TEXT = ((TOKEN_IDS, PADDING_MASK),)


def open_session(
    path: Path, threads: int | None = None, names: Sequence[tuple[str, ...]] = ONE_TEXT
) -> onnxruntime.InferenceSession:
    """A session whose first output is the probabilities or the scores.

    Args:
        path: The .onnx file.
        threads: Of the runtime; None leaves it the choice.
        names: Of the token ids, masks and what else it must take.

    Raises:
        InputError: It is not a model that `export.onnx` wrote.
    """
    options = onnxruntime.SessionOptions()
    if threads is not None:
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has an exception class for each of its states, with no parent.
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(f"{path}: expected an ONNX file, got another ({reason})") from error
    inputs = sorted(given.name for given in session.get_inputs())
    expected = [name for group in names for name in group]
    if inputs != sorted(expected) or session.get_outputs()[0].name not in (PROBABILITIES, SCORES):
        raise InputError(
            f"{path}: expected a model of {' and '.join(expected)}, got one of {', '.join(inputs)}"
        )
    return session
