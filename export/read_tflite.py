"""Reads a TFLite file with LiteRT; no TensorFlow."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter, OpResolverType

from export.token_batches import batches, padded, read_tokenizer
from kmha.errors import InputError

TOKEN_IDS, PADDING_MASK, PROBABILITIES = "token_ids", "padding_mask", "probabilities"
_PRODUCTS = ("FULLY_CONNECTED", "BATCH_MATMUL")


class TflitePredictor:
    """See `export.predictors.Predictor`; a text goes to the shortest signature that it fits."""

    def __init__(self, path: Path):
        self._path = path
        self._tokenizer = read_tokenizer(path)
        self._interpreter = _interpreter(path)
        self._runners = _runners(self._interpreter, path)
        self._fixed = [length for length, _ in self._runners if length is not None]

    def facts(self) -> dict[str, Any]:
        """See the protocol."""
        # Delegates would hide the file's own operators behind theirs.
        plain = _interpreter(self._path, observed=True)
        operators = plain._get_ops_details()
        return {
            "quantization": _quantization(plain, operators),
            "ops": dict(Counter(operator["op_name"] for operator in operators).most_common()),
            "lengths": self._fixed or None,
            "labels": self._tokenizer.labels,
        }

    def token_ids(self, texts: Sequence[bytes]) -> list[list[int]]:
        """See the protocol."""
        longest = self._fixed[-1] if self._fixed else None
        return [self._tokenizer.encode(text, longest) for text in texts]

    def probabilities(self, texts: Sequence[bytes]) -> np.ndarray:
        """See the protocol."""
        ids = self.token_ids(texts)
        result = np.zeros((len(texts), len(self._tokenizer.labels)), np.float32)
        for rows in batches(ids):
            for row in rows:
                length, runner = self._runner(len(ids[row]))
                result[row] = runner(**self._inputs([ids[row]], length))[PROBABILITIES][0]
        return result

    def tensors(self, texts: Sequence[bytes]) -> Iterator[np.ndarray]:
        """See the protocol."""
        ids = self.token_ids(texts)
        longest = max(map(len, ids))
        observed = _interpreter(self._path, observed=True)
        fits = [pair for pair in _runners(observed, self._path) if pair[0] is None or pair[0] >= longest]
        length, runner = fits[0]
        values: dict[int, list[np.ndarray]] = {}
        for row in ids:
            runner(**self._inputs([row], longest if length is None else length))
            for tensor in observed.get_tensor_details(runner._subgraph_index):
                value = _value(observed, tensor, runner._subgraph_index)
                if value is not None:
                    values.setdefault(tensor["index"], []).append(value)
        yield from (np.stack(rows) for rows in values.values() if len(rows) == len(ids))

    def _runner(self, length: int) -> tuple[int | None, Any]:
        return next(pair for pair in self._runners if pair[0] is None or pair[0] >= length)

    def _inputs(self, ids: Sequence[Sequence[int]], length: int | None) -> dict[str, np.ndarray]:
        token_ids, mask = padded(self._tokenizer, ids, length)
        return {TOKEN_IDS: token_ids, PADDING_MASK: mask}


def read(path: Path) -> TflitePredictor:
    """Loads a file and the tokenizer.json beside it.

    Raises:
        InputError: It is not a model that `export.tflite` wrote, or the tokenizer is missing.
    """
    return TflitePredictor(path)


def _interpreter(path: Path, observed: bool = False) -> Interpreter:
    kind = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES if observed else OpResolverType.AUTO
    try:
        return Interpreter(
            str(path), experimental_op_resolver_type=kind, experimental_preserve_all_tensors=observed
        )
    except (ValueError, RuntimeError, OSError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(f"{path}: wanted a TFLite file, given another ({reason})") from error


def _runners(interpreter: Interpreter, path: Path) -> list[tuple[int | None, Any]]:
    """Each signature's length (None: any) and runner, shortest first."""
    pairs = []
    for name, sides in interpreter.get_signature_list().items():
        if sorted(sides["inputs"]) == [PADDING_MASK, TOKEN_IDS] and PROBABILITIES in sides["outputs"]:
            runner = interpreter.get_signature_runner(name)
            length = int(runner.get_input_details()[TOKEN_IDS]["shape_signature"][1])
            pairs.append((None if length < 0 else length, runner))
    if not pairs:
        raise InputError(f"{path}: wanted a signature of token_ids and padding_mask, given a file without")
    return sorted(pairs, key=lambda pair: (pair[0] is None, pair[0] or 0))


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
