"""A TFLite model in LiteRT with the device's tokenizer; no TensorFlow."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter

from export.timing.timed import Timed
from export.token_batches import padded, read_tokenizer
from kmha.errors import InputError

TOKEN_IDS, PADDING_MASK, PROBABILITIES = "token_ids", "padding_mask", "probabilities"


def load(path: str, threads: int, sizes: dict[str, Any]) -> Timed:
    """Loads a file and the tokenizer.json beside it.

    Args:
        path: Of the .tflite file.
        threads: Of the runtime.
        sizes: Unused.

    Raises:
        InputError: It is not a model that `export.tflite` wrote, or the tokenizer is missing.
    """
    runners = _runners(path, threads)
    tokenizer = read_tokenizer(Path(path))
    longest = max(runners) or tokenizer.max_length

    def from_ids(token_ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        length = token_ids.shape[1]
        runner, names = runners[length if length in runners else 0]
        # Inputs beside these two, such as BERT's segments, are all zeros.
        given = {name: np.zeros_like(token_ids) for name in names}
        return runner(**{**given, TOKEN_IDS: token_ids, PADDING_MASK: mask})[PROBABILITIES]

    def from_texts(texts: Sequence[bytes]) -> np.ndarray:
        (ids,) = (tokenizer.encode(text, longest) for text in texts)
        length = min((length for length in runners if length >= len(ids)), default=len(ids))
        return from_ids(*padded(tokenizer, [ids], length))

    lengths = sorted(length for length in runners if length)
    return Timed(from_ids, from_texts, lengths or None, batched=False)


def _runners(path: str, threads: int) -> dict[int, tuple[Any, list[str]]]:
    """Each signature's length (0: any) to its runner and the names of its inputs."""
    try:
        interpreter = Interpreter(model_path=path, num_threads=threads)
    except ValueError as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(f"{path}: wanted a TFLite model, {reason}") from error
    runners = {}
    for name in interpreter.get_signature_list():
        runner = interpreter.get_signature_runner(name)
        inputs = runner.get_input_details()
        if not {TOKEN_IDS, PADDING_MASK} <= set(inputs) or PROBABILITIES not in runner.get_output_details():
            raise InputError(
                f"{path}: wanted a model of {TOKEN_IDS} and {PADDING_MASK}, given one of {', '.join(inputs)}"
            )
        length = int(inputs[TOKEN_IDS]["shape_signature"][1])
        runners[max(length, 0)] = (runner, list(inputs))
    if not runners:
        raise InputError(f"{path}: wanted a TFLite model with a signature, given one without")
    return runners
