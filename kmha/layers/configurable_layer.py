"""The base class of layers whose configuration is the arguments of their constructor."""

import dataclasses
import inspect

import keras


class ConfigurableLayer(keras.layers.Layer):
    """A layer that has an attribute for each argument of its constructor; `get_config` returns these."""

    def get_config(self):
        """The constructor's arguments, as JSON values."""
        names = [
            name
            for name in inspect.signature(type(self).__init__).parameters
            # Keras reads an attribute `output_shape` as the shape of the output: a layer adds the argument itself.
            if name not in ("self", "kwargs", "output_shape")
        ]
        return {**super().get_config(), **{name: _json_value(getattr(self, name)) for name in names}}


def _json_value(value):
    if isinstance(value, keras.initializers.Initializer):
        return keras.initializers.serialize(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return list(value) if isinstance(value, tuple) else value
