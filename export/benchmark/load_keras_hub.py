"""Builds an encoder of the same sizes from keras_hub's layers, with random weights, to measure its speed."""

from typing import Any

import keras
import keras_hub
import numpy as np
import tensorflow as tf

from export.benchmark.loaders import LoadedModel, check_sizes


def load(path: str, threads: int, sizes: dict[str, Any]) -> LoadedModel:
    """Builds `TransformerEncoder` layers over token and position embeddings, a mean and a dense layer."""
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

    def predict(token_ids, mask):
        x = embedding(token_ids)
        for block in blocks:
            x = block(x, padding_mask=mask, training=False)
        real = tf.cast(mask, x.dtype)[:, :, None]
        return head(tf.reduce_sum(x * real, axis=1) / tf.reduce_sum(real, axis=1))

    predict(np.zeros((1, 3), np.int32), np.ones((1, 3), np.int32))
    spec = tf.TensorSpec([None, None], tf.int32)
    traced: Any = tf.function(predict, autograph=False, input_signature=[spec, spec])

    def from_ids(token_ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        return traced(tf.constant(token_ids), tf.constant(mask)).numpy()

    return LoadedModel(from_ids)
