"""A SavedModel's graph laid out flat: which ops it has, and what every one of its tensors holds."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np


def tensors_of(signature: Any, inputs: Mapping[str, Any]) -> Iterator[np.ndarray]:
    """All numbers that a signature computes, but those inside loops.

    Args:
        signature: Of a loaded SavedModel.
        inputs: What it is asked, tensors by name.
    """
    import tensorflow as tf
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    # One flat graph, the only form of which every tensor can be asked for.
    flat = convert_variables_to_constants_v2(signature, lower_control_flow=False)
    kinds = {tf.float32, tf.float16, tf.bfloat16, tf.int32}
    outputs = [
        output
        for operation in flat.graph.get_operations()
        if operation.type not in ("Const", "Placeholder")
        for output in operation.outputs
        if output.dtype in kinds
    ]
    given = [inputs[tensor.name.partition(":")[0]] for tensor in flat.inputs]
    for value in flat.prune(flat.inputs, outputs)(*given):
        yield tf.cast(value, tf.float32).numpy() if value.dtype == tf.bfloat16 else value.numpy()


def ops_of(path: Path) -> dict[str, int]:
    """How often each op stands in the graphs and functions of a SavedModel's folder, the most frequent first."""
    from tensorflow.core.protobuf import saved_model_pb2

    saved: Any = saved_model_pb2.SavedModel()
    saved.ParseFromString((path / "saved_model.pb").read_bytes())
    counts = Counter()
    for meta in saved.meta_graphs:
        counts.update(node.op for node in meta.graph_def.node)
        for function in meta.graph_def.library.function:
            counts.update(node.op for node in function.node_def)
    return dict(counts.most_common())
