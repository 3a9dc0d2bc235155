"""Runs a TFLite file on texts with LiteRT and the device tokenizer, without TensorFlow."""

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from export.device.sentences import SPECIAL_TOKENS
from export.names import EMBED, EMBED_QUERY, PROBABILITIES, SCORES, VECTORS
from export.predictors.token_batches import (
    Outputs,
    SentenceWindow,
    TokenIdsPredictor,
    input_names,
    model_inputs,
    window_inputs,
)
from kmha.errors import InputError
from kmha.features import TOKEN_IDS

_PRODUCTS = ("FULLY_CONNECTED", "BATCH_MATMUL")


@dataclass(frozen=True)
class Signature:
    """A signature of a model; `lengths` is T of each input of token ids, in the order of the texts, 0 for any."""

    runner: Any
    inputs: tuple[str, ...]
    lengths: tuple[int, ...]
    # The output with the probabilities, scores or vectors.
    output: str
    outputs: tuple[str, ...]

    def padded_lengths(self, lengths: Iterable[int]) -> list[int]:
        """The lengths to which token ids of these lengths are padded."""
        return [most or length for length, most in zip(lengths, self.lengths, strict=True)]

    def run(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """All outputs; missing inputs, such as BERT's segments, are zeros."""
        zeros = np.zeros_like(next(iter(inputs.values())))
        return self.runner(**{name: inputs.get(name, zeros) for name in self.inputs})


class TflitePredictor(TokenIdsPredictor):
    """See `export.predictors.artifacts.Predictor`; each text or window runs in the shortest signature that holds it."""

    def __init__(self, path: Path, num_threads: int | None = None):
        interpreter = open_interpreter(path, num_threads)
        super().__init__(path)
        self._names = [name for name, *_ in input_names(self.tokenizer)]
        self._signatures = read_signatures(interpreter, path, self._names)
        self.longest = max(self._signatures[-1].lengths) or None

    @functools.cached_property
    def _observed(self) -> Any:
        """An interpreter that retains all tensors; delegates would replace the file's own operators and tensors."""
        from ai_edge_litert.interpreter import Interpreter, OpResolverType

        return Interpreter(
            str(self.path),
            experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
            experimental_preserve_all_tensors=True,
        )

    @functools.cached_property
    def _observed_signatures(self) -> list[Signature]:
        return read_signatures(self._observed, self.path, self._names)

    def facts(self) -> dict[str, Any]:
        """See the protocol."""
        operators = self._observed._get_ops_details()
        lengths = [max(signature.lengths) for signature in self._signatures if all(signature.lengths)]
        return {
            "quantization": _quantization(self._observed, operators),
            "ops": dict(Counter(operator["op_name"] for operator in operators).most_common()),
            "lengths": lengths or None,
            "labels": self.tokenizer.labels,
        }

    def probabilities(self, texts: Sequence[Any]) -> np.ndarray:
        """See the protocol."""
        if self.sentences:
            # A signature takes one window at a time.
            return self.tag(
                texts, lambda windows: ([number] for number in range(len(windows))), self._run_window
            )
        if not texts:
            return np.zeros((0, len(self.tokenizer.labels)), np.float32)
        return self._outputs(self._signatures, self._signatures[0].output, self.encoded(texts))

    def vectors(self, texts: Sequence[Any]) -> dict[str, np.ndarray]:
        """See the protocol."""
        if self.sentences:
            return {}
        rows, signatures = self.encoded(texts), self._observed_signatures
        names = [name for name in signatures[0].outputs if name.startswith(VECTORS)]
        found = {name: self._outputs(signatures, name, rows) for name in names}
        for name, embeddings in _read_embeddings(self._observed).items():
            found[name] = self._outputs(embeddings, VECTORS, rows)
        return found

    def _outputs(
        self, signatures: Sequence[Signature], output: str, rows: Sequence[list[list[int]]]
    ) -> np.ndarray:
        """An output [R, D] of all rows of ids, each from the shortest signature that holds the texts that it reads."""
        places = [place for place, name in enumerate(self._names) if name in signatures[0].inputs]
        found = []
        for row in rows:
            lengths = [len(row[place]) for place in places]
            signature = shortest_signature(signatures, lengths)
            padded = dict(zip(places, signature.padded_lengths(lengths), strict=True))
            row_lengths = [padded.get(place, len(ids)) for place, ids in enumerate(row)]
            inputs = model_inputs(self.tokenizer, [row], row_lengths)
            found.append(signature.run(inputs)[output][0].copy())
        return np.stack(found)

    def tensors(self, texts: Sequence[Any]) -> Iterator[np.ndarray]:
        """See the protocol."""
        signature, rows = self._inputs(texts)
        graph = signature.runner._subgraph_index
        values: dict[int, list[np.ndarray]] = {}
        for inputs in rows:
            signature.run(inputs)
            for tensor in self._observed.get_tensor_details(graph):
                value = _value(self._observed, tensor, graph)
                if value is not None:
                    values.setdefault(tensor["index"], []).append(value)
        yield from (np.stack(rows) for rows in values.values() if len({row.shape for row in rows}) == 1)

    def _inputs(self, texts: Sequence[Any]) -> tuple[Signature, list[dict[str, np.ndarray]]]:
        """The signature that holds all rows, and its inputs for each row or window."""
        if self.sentences:
            parts = [part for sentence in self.windows(texts) for part in sentence]
            longest = [max(len(window.ids) for window, _ in parts)]
            signature = shortest_signature(self._observed_signatures, longest)
            whole = self._window_inputs(signature, parts)
            rows = (zip(whole, row, strict=True) for row in zip(*whole.values(), strict=True))
            return signature, [{name: values[None] for name, values in row} for row in rows]
        encoded_rows = self.encoded(texts)
        longest = np.max([[len(ids) for ids in row] for row in encoded_rows], axis=0).tolist()
        signature = shortest_signature(self._observed_signatures, longest)
        lengths = signature.padded_lengths(longest)
        return signature, [model_inputs(self.tokenizer, [row], lengths) for row in encoded_rows]

    def _run_window(self, parts: list[SentenceWindow]) -> Outputs:
        signature = shortest_signature(self._signatures, [len(parts[0].window.ids)])
        return signature.run(self._window_inputs(signature, parts))

    def _window_inputs(self, signature: Signature, parts: Sequence[SentenceWindow]) -> dict[str, np.ndarray]:
        """The inputs of a signature for windows, padded to the signature's length if that is fixed."""
        (length,) = signature.lengths
        return window_inputs(
            self.tokenizer, parts, length or None, length - SPECIAL_TOKENS if length else None
        )


def read(path: Path) -> TflitePredictor:
    """Loads a file that `export.tflite` wrote and the tokenizer.json next to it; raises InputError for other files."""
    return TflitePredictor(path)


def load_tflite(path: Path, num_threads: int | None = None) -> Callable[[Sequence[Any]], np.ndarray]:
    """Loads a TFLite model that `export.tflite` wrote, with its .tokenizer.json next to it, as a function.

    Returns:
        A function from texts, or from pairs of texts, to float32 [R, C]. A row runs in the shortest signature that
        holds it, and is truncated to the longest signature. Of a tagger a function from sentences, raw texts or lists
        of words, to float32 [N, K + 2], see `TokenIdsPredictor.tag`; long sentences are split into windows.

    Raises:
        InputError: A file is missing or was not written by `export.tflite`, or LiteRT is not installed.
    """
    return TflitePredictor(Path(path), num_threads).probabilities


def open_interpreter(path: Path, num_threads: int | None) -> Any:
    """LiteRT's interpreter of a file; raises InputError if there is none or LiteRT is not installed."""
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError as error:
        raise InputError(
            f"{path}: expected the package ai-edge-litert, got none; pip install 'kmha[litert]'"
        ) from error
    if not path.is_file():
        raise InputError(f"{path}: expected a TFLite model, got none")
    try:
        return Interpreter(model_path=str(path), num_threads=num_threads)
    except ValueError as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(f"{path}: expected a TFLite model, {reason}") from error


def read_signatures(
    interpreter: Any, path: Path | str, names: Sequence[str] = (TOKEN_IDS,)
) -> list[Signature]:
    """The signatures that take these token ids, shortest first, one of any length last.

    Raises InputError, with the model's path, if the file has other signatures or none.
    """
    found = []
    for key in interpreter.get_signature_list():
        if key.startswith(EMBED):
            continue
        runner = interpreter.get_signature_runner(key)
        inputs, outputs = runner.get_input_details(), runner.get_output_details()
        ids_names = {name for name in inputs if TOKEN_IDS in name}
        output = next((name for name in (PROBABILITIES, SCORES) if name in outputs), None)
        if ids_names != set(names) or output is None:
            expected = f"{', '.join(names)} and {PROBABILITIES} or {SCORES}"
            raise InputError(f"{path}: expected a TFLite model of {expected}, got one of {', '.join(inputs)}")
        lengths = tuple(max(int(inputs[name]["shape_signature"][1]), 0) for name in names)
        found.append(Signature(runner, tuple(inputs), lengths, output, tuple(outputs)))
    if not found:
        raise InputError(f"{path}: expected a TFLite model with a signature, got one without")
    return _shortest_first(found)


def _read_embeddings(interpreter: Any) -> dict[str, list[Signature]]:
    """The signatures of vectors by "embed" and "embed_query", in the order of `read_signatures`."""
    found: dict[str, list[Signature]] = {}
    for key in interpreter.get_signature_list():
        if not key.startswith(EMBED):
            continue
        runner = interpreter.get_signature_runner(key)
        inputs = runner.get_input_details()
        shapes = [inputs[name]["shape_signature"] for name in inputs if TOKEN_IDS in name]
        lengths = tuple(max(int(shape[1]), 0) for shape in shapes)
        signature = Signature(runner, tuple(inputs), lengths, VECTORS, (VECTORS,))
        found.setdefault(EMBED_QUERY if key.startswith(EMBED_QUERY) else EMBED, []).append(signature)
    return {name: _shortest_first(signatures) for name, signatures in found.items()}


def _shortest_first(signatures: Iterable[Signature]) -> list[Signature]:
    return sorted(signatures, key=lambda signature: (not all(signature.lengths), signature.lengths))


def shortest_signature(signatures: Sequence[Signature], lengths: Sequence[int]) -> Signature:
    """The first of the sorted signatures that holds token ids of these lengths."""

    def holds(signature: Signature) -> bool:
        pairs = zip(lengths, signature.lengths, strict=True)
        return all(not most or length <= most for length, most in pairs)

    return next(filter(holds, signatures))


def _quantization(interpreter: Any, operators: Sequence[dict[str, Any]]) -> str:
    """The quantization by tensor types.

    int8 tensors without a scale are tables with scales of their own if they have two dimensions, else the model's own
    integers.
    """
    tensors = {tensor["index"]: tensor for tensor in interpreter.get_tensor_details()}
    small = {
        index
        for index, tensor in tensors.items()
        if tensor["dtype"] == np.int8 and len(tensor["quantization_parameters"]["scales"])
    }
    products = [each for each in operators if each["op_name"] in _PRODUCTS]
    if any(small.intersection(int(index) for index in each["outputs"]) for each in products):
        return "int8"
    tables = (tensors[int(each["inputs"][0])] for each in operators if each["op_name"] == "GATHER")
    if small or any(table["dtype"] == np.int8 and len(table["shape"]) == 2 for table in tables):
        return "dynamic"
    return "float16" if any(tensor["dtype"] == np.float16 for tensor in tensors.values()) else "none"


def _value(interpreter: Any, tensor: dict[str, Any], subgraph: int) -> np.ndarray | None:
    """A tensor's values, dequantized; None if it was not computed."""
    try:
        value = interpreter.get_tensor(tensor["index"], subgraph)
    except ValueError:
        return None
    parameters = tensor["quantization_parameters"]
    if value.dtype.kind == "i" and len(parameters["scales"]) == 1:
        return (value.astype(np.float32) - parameters["zero_points"][0]) * parameters["scales"][0]
    return value if value.dtype.kind in "fi" else None
