"""Tables of which each row stands for an id."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="kmha")
class Table(keras.layers.Embedding):
    """Looks up rows of a table of weights, and reads those rows only.

    Differs: from keras.layers.Embedding, which in TensorFlow reads the whole table first: that copies it, once a table
        was trained by rows, at every batch.

    Call:
        inputs: int32, of any shape, in [0, input_dim).
        Returns float [..., output_dim].
    """

    def call(self, inputs):
        """See the class."""
        try:
            rows = self.embeddings.value.sparse_read(inputs)
        except AttributeError:  # what only TensorFlow's variables of one device have
            return super().call(inputs)
        return ops.cast(rows, self.compute_dtype)
