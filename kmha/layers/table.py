"""Embedding table that reads only the rows it looks up."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="kmha")
class Table(keras.layers.Embedding):
    """An embedding lookup that reads only the requested rows.

    Differs: from keras.layers.Embedding, which in TensorFlow reads the whole table first; after sparse updates this
        copies the table in every batch.

    Call:
        inputs: int32 of any shape, in [0, input_dim).
        Returns float [..., output_dim].
    """

    def call(self, inputs):
        """See the class."""
        try:
            rows = self.embeddings.value.sparse_read(inputs)
        except AttributeError:  # only TensorFlow variables on one device have this method
            return super().call(inputs)
        return ops.cast(rows, self.compute_dtype)
