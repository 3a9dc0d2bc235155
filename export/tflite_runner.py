"""Answers texts with an exported TFLite model, with LiteRT and the device's tokenizer only: no TensorFlow."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from export.token_batches import read_tokenizer
from kmha.errors import InputError

PROBABILITIES = "probabilities"
TOKEN_IDS, PADDING_MASK, SEGMENT_IDS = "token_ids", "padding_mask", "segment_ids"


def load_tflite(path: Path, num_threads: int | None = None) -> Callable[[Sequence[str | bytes]], np.ndarray]:
    """The function of a TFLite model that `export.tflite` wrote.

    Args:
        path: The .tflite file, with its .tokenizer.json beside it.
        num_threads: Of the runtime; None leaves it the choice.

    Returns:
        A function from texts to float32 [R, C]. Each text goes through the signature of the shortest length that
        holds it; one that is longer than all is cut to the longest.

    Raises:
        InputError: A file is missing or not one that `export.tflite` wrote, or LiteRT is not installed.
    """
    path = Path(path)
    interpreter = _interpreter(path, num_threads)
    tokenizer = read_tokenizer(path)
    runners = {}
    for name in interpreter.get_signature_list():
        runner = interpreter.get_signature_runner(name)
        inputs = runner.get_input_details()
        if TOKEN_IDS not in inputs or PROBABILITIES not in runner.get_output_details():
            raise InputError(f"{path}: wanted a model of {TOKEN_IDS} and {PROBABILITIES}, given others")
        length = int(inputs[TOKEN_IDS]["shape_signature"][1])
        # 0 for a signature that takes any length.
        runners[max(length, 0)] = (runner, sorted(inputs))
    longest = max(runners) or tokenizer.max_length

    def probabilities(texts: Sequence[str | bytes]) -> np.ndarray:
        rows = [one(text) for text in texts]
        return np.stack(rows) if rows else np.zeros((0, len(tokenizer.labels)), np.float32)

    def one(text: str | bytes) -> np.ndarray:
        ids = tokenizer.encode(text, longest)
        length = min((length for length in runners if length >= len(ids)), default=0)
        runner, names = runners[length]
        token_ids, mask = (np.array([row], np.int32) for row in tokenizer.pad(ids, length or len(ids)))
        features = {TOKEN_IDS: token_ids, PADDING_MASK: mask, SEGMENT_IDS: np.zeros_like(token_ids)}
        return runner(**{name: features[name] for name in names})[PROBABILITIES][0].copy()

    return probabilities


def _interpreter(path: Path, num_threads: int | None):
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError as error:
        raise InputError(f"{path}: wanted the package ai-edge-litert, given none") from error
    if not path.is_file():
        raise InputError(f"{path}: wanted a TFLite model, given none")
    try:
        return Interpreter(model_path=str(path), num_threads=num_threads)
    except ValueError as error:
        raise InputError(f"{path}: wanted a TFLite model, {str(error).splitlines()[0]}") from error
