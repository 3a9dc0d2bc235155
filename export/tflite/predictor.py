"""Runs a TFLite file with LiteRT, without TensorFlow."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter, OpResolverType

from export.device.sentences import SentenceTokenizer
from export.names import VECTORS
from export.predictors.sentence_batches import SentenceWindow, sentence_windows
from export.predictors.token_batches import (
    TextTokenizer,
    encode_row,
    ids_by_row,
    input_names,
    model_inputs,
    num_texts,
    read_tokenizer,
)
from export.tflite.runner import (
    Signature,
    load_tflite,
    read_embeddings,
    read_signatures,
    shortest_signature,
    signature_inputs,
)

_PRODUCTS = ("FULLY_CONNECTED", "BATCH_MATMUL")


class TflitePredictor:
    """See `export.predictors.protocol.Predictor`; each text or window runs in the shortest signature that holds it."""

    def __init__(self, path: Path):
        self._path = path
        self._predict = load_tflite(path)
        self._tokenizer = read_tokenizer(path)
        self.num_texts = num_texts(self._tokenizer)
        self.sentences = isinstance(self._tokenizer, SentenceTokenizer)
        # Delegates would replace the file's own operators and tensors.
        self._observed = Interpreter(
            str(path),
            experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
            experimental_preserve_all_tensors=True,
        )
        names = [name for name, *_ in input_names(self._tokenizer)]
        self._signatures = read_signatures(self._observed, path, names)

    def facts(self) -> dict[str, Any]:
        """See the protocol."""
        operators = self._observed._get_ops_details()
        lengths = [max(signature.lengths) for signature in self._signatures if all(signature.lengths)]
        return {
            "quantization": _quantization(self._observed, operators),
            "ops": dict(Counter(operator["op_name"] for operator in operators).most_common()),
            "lengths": lengths or None,
            "labels": self._tokenizer.labels,
        }

    def token_ids(self, texts: Sequence[Any]) -> list[Any]:
        """See the protocol."""
        if isinstance(self._tokenizer, SentenceTokenizer):
            return [[window.ids for window, _ in parts] for parts in self._windows(self._tokenizer, texts)]
        return ids_by_row(self._encoded(self._tokenizer, texts))

    def probabilities(self, texts: Sequence[Any]) -> np.ndarray:
        """See the protocol."""
        return self._predict(texts)

    def vectors(self, texts: Sequence[Any]) -> dict[str, np.ndarray]:
        """See the protocol."""
        if isinstance(self._tokenizer, SentenceTokenizer):
            return {}
        rows = self._encoded(self._tokenizer, texts)
        names = [name for name in self._signatures[0].outputs if name.startswith(VECTORS)]
        found = {name: self._outputs(self._signatures, name, rows) for name in names}
        for name, signatures in read_embeddings(self._observed).items():
            found[name] = self._outputs(signatures, VECTORS, rows)
        return found

    def _outputs(
        self, signatures: Sequence[Signature], output: str, rows: Sequence[list[list[int]]]
    ) -> np.ndarray:
        """An output [R, D] of all rows of ids, each from the shortest signature that holds the texts that it reads."""
        assert not isinstance(self._tokenizer, SentenceTokenizer)
        places = [
            place
            for place, (ids_name, *_) in enumerate(input_names(self._tokenizer))
            if ids_name in signatures[0].inputs
        ]
        found = []
        for row in rows:
            lengths = [len(row[place]) for place in places]
            signature = shortest_signature(signatures, lengths)
            padded = dict(zip(places, signature.padded_lengths(lengths), strict=True))
            row_lengths = [padded.get(place, len(ids)) for place, ids in enumerate(row)]
            inputs = model_inputs(self._tokenizer, [row], row_lengths)
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

    @property
    def _longest(self) -> int | None:
        return max(self._signatures[-1].lengths) or None

    def _inputs(self, texts: Sequence[Any]) -> tuple[Signature, list[dict[str, np.ndarray]]]:
        """The signature that holds all rows, and its inputs for each row or window."""
        if isinstance(self._tokenizer, SentenceTokenizer):
            parts = [part for sentence in self._windows(self._tokenizer, texts) for part in sentence]
            signature = shortest_signature(self._signatures, [max(len(window.ids) for window, _ in parts)])
            whole = signature_inputs(self._tokenizer, signature, parts)
            names = list(whole)
            rows = (zip(names, row, strict=True) for row in zip(*whole.values(), strict=True))
            return signature, [{name: values[None] for name, values in row} for row in rows]
        encoded_rows = self._encoded(self._tokenizer, texts)
        longest = np.max([[len(ids) for ids in row] for row in encoded_rows], axis=0).tolist()
        signature = shortest_signature(self._signatures, longest)
        lengths = signature.padded_lengths(longest)
        return signature, [model_inputs(self._tokenizer, [row], lengths) for row in encoded_rows]

    def _encoded(self, tokenizer: TextTokenizer, texts: Sequence[Any]) -> list[list[list[int]]]:
        return [encode_row(tokenizer, text, self._longest) for text in texts]

    def _windows(self, tokenizer: SentenceTokenizer, rows: Sequence[Any]) -> list[list[SentenceWindow]]:
        return [sentence_windows(tokenizer, row, self._longest, number) for number, row in enumerate(rows, 1)]


def read(path: Path) -> TflitePredictor:
    """Loads a file and the tokenizer.json next to it.

    Raises:
        InputError: The file is not a model that `export.tflite` wrote, or the tokenizer is missing.
    """
    return TflitePredictor(path)


def _quantization(interpreter: Interpreter, operators: Sequence[dict[str, Any]]) -> str:
    """The quantization by tensor types; int8 tensors without a scale are the model's own integers."""
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
    """A tensor's values, dequantized; None if it was not computed."""
    try:
        value = interpreter.get_tensor(tensor["index"], subgraph)
    except ValueError:
        return None
    parameters = tensor["quantization_parameters"]
    if value.dtype.kind == "i" and len(parameters["scales"]) == 1:
        return (value.astype(np.float32) - parameters["zero_points"][0]) * parameters["scales"][0]
    return value if value.dtype.kind in "fi" else None
