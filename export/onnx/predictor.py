"""Runs an ONNX file with onnxruntime on the CPU, without TensorFlow."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from export.names import PROBABILITIES, SCORES, VECTORS
from export.predictors.token_batches import (
    Outputs,
    SentenceWindow,
    TokenIdsPredictor,
    input_names,
    length_batches,
    model_inputs,
    window_inputs,
)
from kmha.errors import InputError
from kmha.features import PADDING_MASK, TOKEN_IDS
from kmha.input_files import parse_json

ONE_TEXT = ((TOKEN_IDS, PADDING_MASK),)
# Of files of earlier versions, whose activations were quantized too.
_DYNAMIC = {"MatMulInteger", "DynamicQuantizeLinear", "DynamicQuantizeMatMul"}


class OnnxPredictor(TokenIdsPredictor):
    """See `export.predictors.artifacts.Predictor`."""

    def __init__(self, path: Path):
        super().__init__(path)
        self._session = open_session(path, names=input_names(self.tokenizer))
        output = self._session.get_outputs()[0]
        self._output, self._classes = output.name, output.shape[-1]

    def facts(self) -> dict[str, Any]:
        """See the protocol."""
        model = _model(self.path)
        metadata = self._session.get_modelmeta().custom_metadata_map
        return {
            "quantization": _quantization(model),
            "ops": dict(Counter(node.op_type for node in model.graph.node).most_common()),
            "lengths": None,
            "labels": parse_json(metadata["labels"], f"{self.path}: labels")
            if "labels" in metadata
            else None,
        }

    def probabilities(self, texts: Sequence[Any]) -> np.ndarray:
        """See the protocol."""
        if self.sentences:
            return self.tag(texts, length_batches, self._run_windows)
        return self._outputs(texts, {self._output: self._classes})[self._output]

    def vectors(self, texts: Sequence[Any]) -> dict[str, np.ndarray]:
        """See the protocol."""
        sizes = {out.name: out.shape[-1] for out in self._session.get_outputs() if VECTORS in out.name}
        return {} if self.sentences or not sizes else self._outputs(texts, sizes)

    def _outputs(self, texts: Sequence[Any], sizes: dict[str, int]) -> dict[str, np.ndarray]:
        """Outputs float32 [R, size] by name."""
        ids = self.encoded(texts)
        result = {name: np.zeros((len(texts), size), np.float32) for name, size in sizes.items()}
        for rows in length_batches(ids):
            inputs = model_inputs(self.tokenizer, [ids[row] for row in rows])
            for name, value in zip(sizes, self._session.run(list(sizes), inputs), strict=True):
                result[name][rows] = value
        return result

    def tensors(self, texts: Sequence[Any]) -> Iterator[np.ndarray]:
        """See the protocol."""
        import onnx

        model = _model(self.path)
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
        if self.sentences:
            parts = [part for sentence in self.windows(texts) for part in sentence]
            inputs = window_inputs(self.tokenizer, parts)
        else:
            inputs = model_inputs(self.tokenizer, self.encoded(texts))
        yield from (np.asarray(value) for value in session.run(None, inputs))

    def _run_windows(self, parts: list[SentenceWindow]) -> Outputs:
        names = [output.name for output in self._session.get_outputs()]
        values = self._session.run(names, window_inputs(self.tokenizer, parts))
        return dict(zip(names, map(np.asarray, values), strict=True))


def read(path: Path) -> OnnxPredictor:
    """Loads a file that `export.onnx` wrote and the tokenizer.json next to it; raises InputError for other files."""
    return OnnxPredictor(path)


def open_session(
    path: Path, threads: int | None = None, names: Sequence[tuple[str, ...]] = ONE_TEXT
) -> onnxruntime.InferenceSession:
    """A session of a file with these groups of inputs, whose first output is the probabilities or the scores.

    `threads` of None is the runtime's default. Raises InputError if `export.onnx` did not write the file.
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


def _model(path: Path) -> Any:
    # Here, so that the benchmark's measurement of a session does not count this import.
    import onnx

    return onnx.load_model(str(path))


def _quantization(model: Any) -> str:
    import onnx

    ops = {node.op_type for node in model.graph.node}
    if ops & _DYNAMIC:
        return "dynamic"
    if "QuantizeLinear" in ops or any(op.startswith("QLinear") for op in ops):
        return "int8"
    # Other integers, such as n-gram vocabulary masks, have one dimension.
    weights = {(constant.data_type, len(constant.dims)) for constant in model.graph.initializer}
    if (onnx.TensorProto.INT8, 2) in weights:
        return "dynamic"
    return "float16" if any(data_type == onnx.TensorProto.FLOAT16 for data_type, _ in weights) else "none"
