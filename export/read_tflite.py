"""Reads a TFLite file with LiteRT; no TensorFlow."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter, OpResolverType

from export.tflite_runner import PADDING_MASK, TOKEN_IDS, load_tflite
from export.token_batches import padded, read_tokenizer

_PRODUCTS = ("FULLY_CONNECTED", "BATCH_MATMUL")


class TflitePredictor:
    """See `export.predictors.Predictor`; a text goes to the shortest signature that it fits."""

    def __init__(self, path: Path):
        self._path = path
        self._answer = load_tflite(path)
        self._tokenizer = read_tokenizer(path)
        # Delegates would hide the file's own operators and tensors behind theirs.
        self._observed = Interpreter(
            str(path),
            experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
            experimental_preserve_all_tensors=True,
        )
        self._runners = _runners(self._observed)

    def facts(self) -> dict[str, Any]:
        """See the protocol."""
        operators = self._observed._get_ops_details()
        lengths = [length for length, _ in self._runners if length is not None]
        return {
            "quantization": _quantization(self._observed, operators),
            "ops": dict(Counter(operator["op_name"] for operator in operators).most_common()),
            "lengths": lengths or None,
            "labels": self._tokenizer.labels,
        }

    def token_ids(self, texts: Sequence[bytes]) -> list[list[int]]:
        """See the protocol."""
        longest, _ = self._runners[-1]
        return [self._tokenizer.encode(text, longest) for text in texts]

    def probabilities(self, texts: Sequence[bytes]) -> np.ndarray:
        """See the protocol."""
        return self._answer(texts)

    def tensors(self, texts: Sequence[bytes]) -> Iterator[np.ndarray]:
        """See the protocol."""
        ids = self.token_ids(texts)
        longest = max(map(len, ids))
        length, runner = next(pair for pair in self._runners if pair[0] is None or pair[0] >= longest)
        values: dict[int, list[np.ndarray]] = {}
        for row in ids:
            runner(**_inputs(runner, *padded(self._tokenizer, [row], length or longest)))
            for tensor in self._observed.get_tensor_details(runner._subgraph_index):
                value = _value(self._observed, tensor, runner._subgraph_index)
                if value is not None:
                    values.setdefault(tensor["index"], []).append(value)
        yield from (np.stack(rows) for rows in values.values() if len({row.shape for row in rows}) == 1)


def _inputs(runner: Any, token_ids: np.ndarray, mask: np.ndarray) -> dict[str, np.ndarray]:
    given = {TOKEN_IDS: token_ids, PADDING_MASK: mask}
    return {name: given.get(name, np.zeros_like(token_ids)) for name in runner.get_input_details()}


def _runners(interpreter: Interpreter) -> list[tuple[int | None, Any]]:
    """Each signature's length (None: any) and runner, shortest first."""
    pairs = []
    for name in interpreter.get_signature_list():
        runner = interpreter.get_signature_runner(name)
        length = int(runner.get_input_details()[TOKEN_IDS]["shape_signature"][1])
        pairs.append((None if length < 0 else length, runner))
    return sorted(pairs, key=lambda pair: (pair[0] is None, pair[0] or 0))


def read(path: Path) -> TflitePredictor:
    """Loads a file and the tokenizer.json beside it.

    Raises:
        InputError: It is not a model that `export.tflite` wrote, or the tokenizer is missing.
    """
    return TflitePredictor(path)


def _quantization(interpreter: Interpreter, operators: Sequence[dict[str, Any]]) -> str:
    """From the types of the tensors; int8 without a scale are numbers of the model itself."""
    tensors = {tensor["index"]: tensor for tensor in interpreter.get_tensor_details()}
    small = {
        index
        for index, tensor in tensors.items()
        if tensor["dtype"] == np.int8 and len(tensor["quantization_parameters"]["scales"])
    }
    products = [each for each in operators if each["op_name"] in _PRODUCTS]
    if any(small.intersection(int(index) for index in each["outputs"]) for each in products):
        return "int8"
    if small:
        return "dynamic"
    return "float16" if any(tensor["dtype"] == np.float16 for tensor in tensors.values()) else "none"


def _value(interpreter: Interpreter, tensor: dict[str, Any], subgraph: int) -> np.ndarray | None:
    """A tensor's numbers, dequantized; None where nothing was computed."""
    try:
        value = interpreter.get_tensor(tensor["index"], subgraph)
    except ValueError:
        return None
    parameters = tensor["quantization_parameters"]
    if value.dtype.kind == "i" and len(parameters["scales"]) == 1:
        return (value.astype(np.float32) - parameters["zero_points"][0]) * parameters["scales"][0]
    return value if value.dtype.kind in "fi" else None
