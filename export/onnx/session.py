"""Opens an ONNX file that `export.onnx` wrote, with onnxruntime on the CPU."""

from collections.abc import Sequence
from pathlib import Path

import onnxruntime

from export.names import PROBABILITIES, SCORES
from kmha.errors import InputError
from kmha.features import PADDING_MASK, TOKEN_IDS

ONE_TEXT = ((TOKEN_IDS, PADDING_MASK),)


def open_session(
    path: Path, threads: int | None = None, names: Sequence[tuple[str, ...]] = ONE_TEXT
) -> onnxruntime.InferenceSession:
    """A session whose first output is the probabilities or the scores.

    Args:
        path: The .onnx file.
        threads: Threads of the runtime; None: the runtime's default.
        names: Names of the inputs that it must have, in groups.

    Raises:
        InputError: The file is not a model that `export.onnx` wrote.
    """
    options = onnxruntime.SessionOptions()
    if threads is not None:
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises classes without a common base.
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(f"{path}: expected an ONNX file, got another ({reason})") from error
    inputs = sorted(each.name for each in session.get_inputs())
    expected = [name for group in names for name in group]
    if inputs != sorted(expected) or session.get_outputs()[0].name not in (PROBABILITIES, SCORES):
        raise InputError(
            f"{path}: expected a model of {' and '.join(expected)}, got one of {', '.join(inputs)}"
        )
    return session
