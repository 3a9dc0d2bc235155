"""Reads a SavedModel with TensorFlow and tensorflow-text, and nothing of the code that trained it."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kmha.errors import InputError
from kmha.quiet import import_tensorflow

SIGNATURE, TEXT, PROBABILITIES, LABELS = "serving_default", "text", "probabilities", "labels"
BATCH_ROWS = 32


class SavedModelPredictor:
    """See `export.predictors.Predictor`."""

    def __init__(self, path: Path):
        self._path = path
        # `_loaded` must outlive the signature, which does not hold the variables itself.
        self._loaded, self._signature = _load(path)

    def facts(self) -> dict[str, Any]:
        """See the protocol."""
        names = self._signature(text=_strings([b""]))[LABELS].numpy()[0]
        return {
            "quantization": "none",
            "ops": _ops(self._path),
            "lengths": None,
            "labels": [name.decode() for name in names],
        }

    def token_ids(self, texts: Sequence[bytes]) -> None:
        """See the protocol: the tokenizer is inside."""

    def probabilities(self, texts: Sequence[bytes]) -> np.ndarray:
        """See the protocol."""
        parts = [texts[first : first + BATCH_ROWS] for first in range(0, len(texts), BATCH_ROWS)] or [[]]
        return np.concatenate([self._signature(text=_strings(part))[PROBABILITIES].numpy() for part in parts])

    def tensors(self, texts: Sequence[bytes]) -> Iterator[np.ndarray]:
        """See the protocol."""
        import tensorflow as tf
        from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

        # One flat graph, the only form of which every tensor can be asked for.
        flat = convert_variables_to_constants_v2(self._signature, lower_control_flow=False)
        kinds = {tf.float32, tf.float16, tf.bfloat16, tf.int32}
        outputs = [
            output
            for operation in flat.graph.get_operations()
            if operation.type not in ("Const", "Placeholder")
            for output in operation.outputs
            if output.dtype in kinds
        ]
        for value in flat.prune(flat.inputs[0], outputs)(_strings(texts)):
            yield tf.cast(value, tf.float32).numpy() if value.dtype == tf.bfloat16 else value.numpy()


def read(path: Path) -> SavedModelPredictor:
    """Loads a version's folder.

    Raises:
        InputError: It holds no SavedModel with a text signature.
    """
    return SavedModelPredictor(path)


def open_savedmodel(path: Path | str) -> Any:
    """What `tf.saved_model.load` gives, with tensorflow-text's ops at hand.

    Raises:
        InputError: No SavedModel stands there, or not one that can be loaded.
    """
    import_tensorflow()
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  (registers the tokenizer's ops)

    try:
        return tf.saved_model.load(str(path))
    except (OSError, ValueError, tf.errors.OpError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(f"{path}: wanted a SavedModel, given another folder ({reason})") from error


def _load(path: Path) -> tuple[Any, Any]:
    loaded = open_savedmodel(path)
    signature = loaded.signatures.get(SIGNATURE)
    takes = {} if signature is None else signature.structured_input_signature[1]
    if set(takes) != {TEXT}:
        raise InputError(f"{path}: wanted a SavedModel whose {SIGNATURE} takes {TEXT}, given one without")
    return loaded, signature


def _strings(texts: Sequence[bytes]):
    import tensorflow as tf

    return tf.constant(list(texts), tf.string)


def _ops(path: Path) -> dict[str, int]:
    from tensorflow.core.protobuf import saved_model_pb2

    saved: Any = saved_model_pb2.SavedModel()
    saved.ParseFromString((path / "saved_model.pb").read_bytes())
    counts = Counter()
    for meta in saved.meta_graphs:
        counts.update(node.op for node in meta.graph_def.node)
        for function in meta.graph_def.library.function:
            counts.update(node.op for node in function.node_def)
    return dict(counts.most_common())
