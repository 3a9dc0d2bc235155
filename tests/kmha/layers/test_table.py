"""Tables of rows: what they give, and what they read for it."""

import keras
import numpy as np
import pytest

from kmha.layers.table import Table
from tests.layer_checks import BACKEND, fill_weights, to_numpy

ROWS, WIDTH = 9, 4
IDS = np.random.default_rng(3).integers(0, ROWS, (2, 5)).astype("int32")
# Sparse reads exist on TensorFlow only.
ON_TENSORFLOW = pytest.mark.skipif(
    BACKEND != "tensorflow", reason="other backends hand tables over as they are"
)


def _table(**options) -> Table:
    table = Table(ROWS, WIDTH, **options)
    table.build()
    fill_weights(table)
    return table


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_it_gives_what_keras_embedding_gives(dtype):
    table = _table(dtype=dtype)
    other = keras.layers.Embedding(ROWS, WIDTH, dtype=dtype)
    other.build()
    other.set_weights(table.get_weights())
    found = table(IDS)
    np.testing.assert_array_equal(to_numpy(found), to_numpy(other(IDS)))
    assert keras.backend.standardize_dtype(found.dtype) == table.compute_dtype


@ON_TENSORFLOW
def test_it_never_reads_the_whole_table():
    import tensorflow as tf

    table = _table()

    @tf.function
    def learn(ids):
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(table(ids))
        return tape.gradient(total, table.embeddings.value)

    graph = learn.get_concrete_function(tf.TensorSpec([None, None], tf.int32)).graph
    kinds = {operation.type for operation in graph.get_operations()}
    assert "ResourceGather" in kinds and "ReadVariableOp" not in kinds


@ON_TENSORFLOW
def test_its_gradient_has_the_rows_that_were_looked_up():
    import tensorflow as tf

    table = _table()
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(table(IDS))
    found = tape.gradient(total, table.embeddings.value)
    assert isinstance(found, tf.IndexedSlices)
    counts = np.bincount(IDS.ravel(), minlength=ROWS).astype("float32")
    np.testing.assert_array_equal(tf.convert_to_tensor(found), np.repeat(counts[:, None], WIDTH, axis=1))
