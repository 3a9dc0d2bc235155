"""An encoder of the same sizes out of keras_hub's layers, with random weights: for its speed only."""

from typing import Any

import keras
import keras_hub
import numpy as np
import tensorflow as tf

from export.benchmark.timed import Timed, check_sizes


def load(path: str, threads: int, sizes: dict[str, Any]) -> Timed:
    """Builds `TransformerEncoder` layers over token and position embeddings, a mean and a dense layer.

    Args:
        path: For messages.
        threads: Unused; TensorFlow takes its number from the environment.
        sizes: An `EncoderConfig`'s numbers, "window" and "labels"; n-gram tables are left out, keras_hub has none.

    Raises:
        InputError: keras_hub cannot build these sizes.
    """
    check_sizes(path, sizes)
    embedding = keras_hub.layers.TokenAndPositionEmbedding(
        sizes["vocabulary_size"], sizes["max_length"], sizes["hidden_dim"]
    )
    blocks = [
        keras_hub.layers.TransformerEncoder(
            sizes["intermediate_dim"],
            sizes["num_heads"],
            activation="relu" if sizes["activation"] == "relu" else "gelu",
            normalize_first=sizes["norm"] == "pre",
        )
        for _ in range(sizes["num_layers"])
    ]
    head = keras.layers.Dense(sizes["labels"], activation="softmax")

    def answer(token_ids, mask):
        x = embedding(token_ids)
        for block in blocks:
            x = block(x, padding_mask=mask, training=False)
        real = tf.cast(mask, x.dtype)[:, :, None]
        return head(tf.reduce_sum(x * real, axis=1) / tf.reduce_sum(real, axis=1))

    answer(np.zeros((1, 3), np.int32), np.ones((1, 3), np.int32))
    spec = tf.TensorSpec([None, None], tf.int32)
    traced: Any = tf.function(answer, autograph=False, input_signature=[spec, spec])

    def from_ids(token_ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        return traced(tf.constant(token_ids), tf.constant(mask)).numpy()

    return Timed(from_ids)
