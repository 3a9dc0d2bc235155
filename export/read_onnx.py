"""Reads an ONNX file with onnxruntime; no TensorFlow."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from export.onnx_session import PADDING_MASK, PROBABILITIES, TOKEN_IDS, open_session
from export.token_batches import batches, padded, read_tokenizer

_DYNAMIC = {"MatMulInteger", "DynamicQuantizeLinear", "DynamicQuantizeMatMul"}


class OnnxPredictor:
    """See `export.predictors.Predictor`."""

    def __init__(self, path: Path):
        self._path = path
        self._tokenizer = read_tokenizer(path)
        self._session = open_session(path)
        self._classes = self._session.get_outputs()[0].shape[-1]

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

    def token_ids(self, texts: Sequence[bytes]) -> list[list[int]]:
        """See the protocol."""
        return [self._tokenizer.encode(text) for text in texts]

    def probabilities(self, texts: Sequence[bytes]) -> np.ndarray:
        """See the protocol."""
        ids = self.token_ids(texts)
        result = np.zeros((len(texts), self._classes), np.float32)
        for rows in batches(ids):
            (result[rows],) = self._session.run([PROBABILITIES], self._inputs([ids[row] for row in rows]))
        return result

    def tensors(self, texts: Sequence[bytes]) -> Iterator[np.ndarray]:
        """See the protocol."""
        model = _model(self._path)
        shown = {output.name for output in model.graph.output}
        names = [name for node in model.graph.node for name in node.output if name and name not in shown]
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
        options = onnxruntime.SessionOptions()
        # The values as the file's operators make them, not as an optimizer joins them.
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        values = session.run(None, self._inputs(self.token_ids(texts)))
        yield from (np.asarray(value) for value in values)

    def _inputs(self, ids: Sequence[Sequence[int]]) -> dict[str, np.ndarray]:
        token_ids, mask = padded(self._tokenizer, ids)
        return {TOKEN_IDS: token_ids, PADDING_MASK: mask}


def read(path: Path) -> OnnxPredictor:
    """Loads a file and the tokenizer.json beside it.

    Raises:
        InputError: It is not a model that `export.onnx` wrote, or the tokenizer is missing.
    """
    return OnnxPredictor(path)


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
