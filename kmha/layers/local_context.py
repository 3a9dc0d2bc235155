"""Local context of each position by a convolution."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="kmha")
class LocalContext(keras.layers.Layer):
    """Adds a convolution over the adjacent positions to each position.

    Attention must learn from data which positions are adjacent. With a few thousand rows this costs accuracy in tasks
    that depend on word order, such as tagging.

    Args:
        width: Width of the convolution; odd.
        dropout: Dropout rate of its inputs.

    Call:
        inputs: float [B, T, D].
        padding_mask: int32 [B, T]; 1 = a real position. Others are zeros in the convolution.
        Returns float [B, T, D].

    Raises:
        ValueError: The width is not an odd number of at least 1.
    """

    def __init__(self, width: int = 5, dropout: float = 0.1, **kwargs):
        super().__init__(**kwargs)
        if width < 1 or width % 2 == 0:
            raise ValueError(f"width must be an odd number of at least 1, got {width}")
        self.width, self.dropout = width, dropout
        self.input_dropout = keras.layers.Dropout(dropout, name="input_dropout", dtype=self.dtype_policy)

    def build(self, inputs_shape):
        """Creates the convolution."""
        dim = inputs_shape[-1]
        self.convolution = keras.layers.Conv1D(
            dim, self.width, padding="same", name="convolution", dtype=self.dtype_policy
        )
        self.convolution.build((None, None, dim))

    def call(self, inputs, padding_mask, training=None):
        """See the class."""
        mask = ops.cast(ops.expand_dims(padding_mask, -1), inputs.dtype)
        seen = self.convolution(self.input_dropout(inputs * mask, training=training))
        return inputs + ops.gelu(seen)

    def get_config(self):
        """The constructor's arguments."""
        return {**super().get_config(), "width": self.width, "dropout": self.dropout}
