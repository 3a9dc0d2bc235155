"""A small neural network on the overlap of two texts, as a layer."""

import keras
from keras import ops

from kmha.layers.configurable_layer import ConfigurableLayer

# Inputs, standardized, are clipped to this: texts that differ from those of the fit do not lead to extreme logits.
LARGEST_INPUT = 4.0


@keras.saving.register_keras_serializable(package="kmha")
class OverlapNetwork(ConfigurableLayer):
    """Adds the logits of a network with one hidden layer to those of a `LinearPairs`; fitted outside of Keras.

    It reads the overlap features and the parts of the linear model's logits, so it learns how they depend on each
    other: a different number counts more in texts that share all words. `factors` scales the linear model's logits
    here; scaling the weights of the linear model would change the inputs of the network.

    Args:
        num_labels: C.
        num_inputs: I, overlap features and parts.
        units: U, hidden units.

    Call:
        overlap: Overlap features, float32 [B, F].
        parts: Parts of the linear model's logits, float32 [B, P, C]; F + P * C = I.
        Returns float32 [B, C].
    """

    def __init__(self, num_labels: int, num_inputs: int, units: int, **kwargs):
        super().__init__(**{**kwargs, "dtype": "float32", "trainable": False})
        self.num_labels, self.num_inputs, self.units = num_labels, num_inputs, units

    def build(self, overlap_shape=None, parts_shape=None):
        """Creates the weights."""
        labels, inputs, units = (self.num_labels,), (self.num_inputs,), (self.units,)
        for name, shape, initializer in (
            ("factors", labels, "ones"),
            ("mean", inputs, "zeros"),
            ("input_scale", inputs, "ones"),
            ("hidden_kernel", inputs + units, "zeros"),
            ("hidden_bias", units, "zeros"),
            ("kernel", units + labels, "zeros"),
            ("bias", labels, "zeros"),
        ):
            weight = self.add_weight(
                name=name, shape=shape, dtype="float32", initializer=initializer, trainable=False
            )
            setattr(self, name, weight)

    def call(self, overlap, parts):
        """See the class."""
        inputs = ops.concatenate(
            [overlap, ops.reshape(parts, (-1, parts.shape[1] * self.num_labels))], axis=-1
        )
        inputs = ops.clip((inputs - self.mean) * self.input_scale, -LARGEST_INPUT, LARGEST_INPUT)
        hidden = ops.relu(ops.matmul(inputs, self.hidden_kernel) + self.hidden_bias)
        linear = ops.sum(parts, axis=1) * self.factors
        return linear + ops.matmul(hidden, self.kernel) + self.bias

    def scale(self, factors) -> None:
        """Multiplies the logits by a number or by one for each label, float [C]."""
        for weight in (self.factors, self.kernel, self.bias):
            weight.assign(weight * factors)

    def compute_output_shape(self, overlap_shape, parts_shape=None):
        """[B, C]."""
        return (overlap_shape[0], self.num_labels)
