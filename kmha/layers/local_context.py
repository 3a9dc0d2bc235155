"""What stands right beside each position."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="kmha")
class LocalContext(keras.layers.Layer):
    """Adds to each position what its neighbours on both sides say, by a convolution.

    Attention has to learn from the rows who stands beside whom; with a few thousand rows that costs accuracy where
    the order of neighbours decides, as in tagging.

    Args:
        width: Positions that each one sees, itself in the middle; odd.
        dropout: Probability of dropping a value of what is seen.

    Call:
        inputs: float [B, T, D].
        padding_mask: int32 [B, T]; 1 = a real position. Others are seen as zeros.
        Returns float [B, T, D].

    Raises:
        ValueError: The width is no odd number of at least 1.
    """

    def __init__(self, width: int = 5, dropout: float = 0.1, **kwargs):
        super().__init__(**kwargs)
        if width < 1 or width % 2 == 0:
            raise ValueError(f"width must be an odd number of at least 1, got {width}")
        self.width, self.dropout = width, dropout
        self.input_dropout = keras.layers.Dropout(dropout, name="input_dropout", dtype=self.dtype_policy)

    def build(self, inputs_shape):
        """Makes the convolution."""
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
