"""Opens an ONNX file that `export.onnx` wrote, with onnxruntime on the processor."""

from pathlib import Path

import onnxruntime

from kmha.errors import InputError

TOKEN_IDS, PADDING_MASK, PROBABILITIES = "token_ids", "padding_mask", "probabilities"


def open_session(path: Path, threads: int | None = None) -> onnxruntime.InferenceSession:
    """A session whose first output is the probabilities.

    Args:
        path: The .onnx file.
        threads: Of the runtime; None leaves it the choice.

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
        raise InputError(f"{path}: wanted an ONNX file, given another ({reason})") from error
    inputs = sorted(given.name for given in session.get_inputs())
    if inputs != sorted((TOKEN_IDS, PADDING_MASK)) or session.get_outputs()[0].name != PROBABILITIES:
        raise InputError(
            f"{path}: wanted a model of {TOKEN_IDS} and {PADDING_MASK}, given one of {', '.join(inputs)}"
        )
    return session
