"""The types of tensors without their sizes: a graph that is traced once for batches of every size."""

from typing import Any

import tensorflow as tf


def any_size(tensors: Any) -> Any:
    """The same structure of `tf.TensorSpec`, each with the type and the number of axes of its tensor."""

    def spec(value):
        value = tf.convert_to_tensor(value)
        return tf.TensorSpec([None] * value.shape.rank, value.dtype)

    return tf.nest.map_structure(spec, tensors)
