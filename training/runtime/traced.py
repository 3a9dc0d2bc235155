"""Functions of batches whose graph is traced once, whatever the sizes of the batches."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def trace_once(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The function as a graph, traced at its first call for tensors of that structure and every size.

    XLA within it still compiles once a size.

    Args:
        function: Of one argument, tensors in any structure; has no AutoGraph.
    """
    graph = None

    def call(tensors: Any) -> Any:
        nonlocal graph
        if graph is None:
            graph = tf.function(function, input_signature=[_any_size(tensors)], autograph=False)
        return graph(tensors)

    return call


def _any_size(tensors: Any) -> Any:
    """The same structure of `tf.TensorSpec`, each with the type and the number of axes of its tensor."""

    def spec(value):
        value = tf.convert_to_tensor(value)
        return tf.TensorSpec([None] * value.shape.rank, value.dtype)

    return tf.nest.map_structure(spec, tensors)
