"""Runs an ONNX file with onnxruntime, without TensorFlow."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from export.device.sentences import SentenceTokenizer
from export.names import VECTORS
from export.onnx.session import open_session
from export.predictors.sentence_batches import (
    Outputs,
    SentenceWindow,
    sentence_windows,
    tag_sentences,
    window_inputs,
)
from export.predictors.token_batches import (
    TextTokenizer,
    encode_row,
    ids_by_row,
    input_names,
    length_batches,
    model_inputs,
    num_texts,
    read_tokenizer,
)

_DYNAMIC = {"MatMulInteger", "DynamicQuantizeLinear", "DynamicQuantizeMatMul"}


class OnnxPredictor:
    """See `export.predictors.protocol.Predictor`."""

    def __init__(self, path: Path):
        self._path = path
        self._tokenizer = read_tokenizer(path)
        self.num_texts = num_texts(self._tokenizer)
        self.sentences = isinstance(self._tokenizer, SentenceTokenizer)
        self._session = open_session(path, names=input_names(self._tokenizer))
        output = self._session.get_outputs()[0]
        self._output, self._classes = output.name, output.shape[-1]

    def facts(self) -> dict[str, Any]:
        """See the protocol."""
        model = _model(self._path)
        metadata = self._session.get_modelmeta().custom_metadata_map
        return {
            "quantization": _quantization(model),
            "ops": dict(Counter(node.op_type for node in model.graph.node).most_common()),
            "lengths": None,
            "labels": json.loads(metadata["labels"]) if "labels" in metadata else None,
        }

    def token_ids(self, texts: Sequence[Any]) -> list[Any]:
        """See the protocol."""
        if isinstance(self._tokenizer, SentenceTokenizer):
            return [[window.ids for window, _ in parts] for parts in _windows(self._tokenizer, texts)]
        return ids_by_row(_encoded(self._tokenizer, texts))

    def probabilities(self, texts: Sequence[Any]) -> np.ndarray:
        """See the protocol."""
        if isinstance(self._tokenizer, SentenceTokenizer):
            return tag_sentences(
                self._tokenizer, _windows(self._tokenizer, texts), length_batches, self._run_windows
            )
        return self._outputs(self._tokenizer, texts, {self._output: self._classes})[self._output]

    def vectors(self, texts: Sequence[Any]) -> dict[str, np.ndarray]:
        """See the protocol."""
        sizes = {out.name: out.shape[-1] for out in self._session.get_outputs() if VECTORS in out.name}
        if isinstance(self._tokenizer, SentenceTokenizer) or not sizes:
            return {}
        return self._outputs(self._tokenizer, texts, sizes)

    def _outputs(
        self, tokenizer: TextTokenizer, texts: Sequence[Any], sizes: dict[str, int]
    ) -> dict[str, np.ndarray]:
        """Outputs float32 [R, size] by name."""
        ids = _encoded(tokenizer, texts)
        result = {name: np.zeros((len(texts), size), np.float32) for name, size in sizes.items()}
        for rows in length_batches(ids):
            values = self._session.run(list(sizes), model_inputs(tokenizer, [ids[row] for row in rows]))
            for name, value in zip(sizes, values, strict=True):
                result[name][rows] = value
        return result

    def tensors(self, texts: Sequence[Any]) -> Iterator[np.ndarray]:
        """See the protocol."""
        model = _model(self._path)
        shown = {output.name for output in model.graph.output}
        names = [name for node in model.graph.node for name in node.output if name and name not in shown]
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
        options = onnxruntime.SessionOptions()
        # The values of the file's own operators, not of fused ones.
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        values = session.run(None, self._inputs(texts))
        yield from (np.asarray(value) for value in values)

    def _inputs(self, texts: Sequence[Any]) -> dict[str, np.ndarray]:
        if isinstance(self._tokenizer, SentenceTokenizer):
            parts = [part for sentence in _windows(self._tokenizer, texts) for part in sentence]
            return window_inputs(self._tokenizer, parts)
        return model_inputs(self._tokenizer, _encoded(self._tokenizer, texts))

    def _run_windows(self, parts: list[SentenceWindow]) -> Outputs:
        assert isinstance(self._tokenizer, SentenceTokenizer)
        names = [output.name for output in self._session.get_outputs()]
        values = self._session.run(names, window_inputs(self._tokenizer, parts))
        return dict(zip(names, map(np.asarray, values), strict=True))


def read(path: Path) -> OnnxPredictor:
    """Loads a file and the tokenizer.json next to it.

    Raises:
        InputError: The file is not a model that `export.onnx` wrote, or the tokenizer is missing.
    """
    return OnnxPredictor(path)


def _encoded(tokenizer: TextTokenizer, texts: Sequence[Any]) -> list[list[list[int]]]:
    return [encode_row(tokenizer, text) for text in texts]


def _windows(tokenizer: SentenceTokenizer, rows: Sequence[Any]) -> list[list[SentenceWindow]]:
    return [sentence_windows(tokenizer, row, number=number) for number, row in enumerate(rows, 1)]


def _model(path: Path) -> onnx.ModelProto:
    return onnx.load_model(str(path))


def _quantization(model: onnx.ModelProto) -> str:
    ops = {node.op_type for node in model.graph.node}
    if ops & _DYNAMIC:
        return "dynamic"
    if "QuantizeLinear" in ops or any(op.startswith("QLinear") for op in ops):
        return "int8"
    halves = any(constant.data_type == onnx.TensorProto.FLOAT16 for constant in model.graph.initializer)
    return "float16" if halves else "none"
