"""Requirements of every layer, on whichever Keras backend runs the tests.

A `LayerCase` defines how to make a layer and its inputs; each function in `CHECKS` takes one case.
"""

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

BACKEND = keras.backend.backend()
# Each with its tolerance, relative to the largest value.
HALF_POLICIES = {"mixed_bfloat16": 0.15, "mixed_float16": 0.02}


@dataclasses.dataclass(frozen=True, eq=False)
class LayerCase:
    """One layer under one set of arguments.

    Attributes:
        make: Makes the layer from keyword arguments that every Keras layer has (name, dtype).
        inputs: Call arguments by name: arrays [B, …], or dictionaries of such.
        output_shape: Of the call's output.
        mask: Name of the int32 mask [B, T] among the inputs (or inside the features), if the layer takes one.
        output_dtype: None means the policy's compute dtype.
        output: Which of the call's outputs is checked, if it returns several.
        hides: Names of the inputs that the mask covers. None: all of them, and the positions of the output too.
    """

    make: Callable[..., keras.Layer]
    inputs: Mapping[str, Any]
    output_shape: tuple[int, ...]
    mask: str | None = None
    output_dtype: str | None = None
    output: int | None = None
    hides: tuple[str, ...] | None = None

    def read(self, outputs):
        """The output that is checked."""
        return outputs if self.output is None else outputs[self.output]


def to_numpy(tensor) -> np.ndarray:
    """The values as a NumPy array: half-precision floats become float32."""
    tensor = ops.convert_to_tensor(tensor)
    if keras.backend.standardize_dtype(tensor.dtype) in ("float16", "bfloat16"):
        tensor = ops.cast(tensor, "float32")
    return ops.convert_to_numpy(tensor)


def compiled(function: Callable) -> dict[str, Callable]:
    """The compiled forms of a function of arrays: graph and XLA on TensorFlow, jit on JAX."""
    if BACKEND == "jax":
        import jax

        return {"jit": jax.jit(function)}
    import tensorflow as tf

    return {
        "graph": tf.function(function, autograph=False),
        "xla": tf.function(function, jit_compile=True, autograph=False),
    }


def run(function: Callable, *arrays):
    """The function's result: eagerly on TensorFlow; under jit on JAX, where each new eager operation compiles."""
    return (compiled(function)["jit"] if BACKEND == "jax" else function)(*arrays)


def keras_mask(x) -> np.ndarray | None:
    """The mask that a next layer gets from Keras with a tensor; None: no mask."""
    found = []

    class Reader(keras.layers.Layer):
        def call(self, x, mask=None):
            found.append(None if mask is None else to_numpy(mask))
            return ops.zeros(1)

        def compute_mask(self, x, previous_mask):
            return None

    Reader()(x)
    return found[0]


def seed_of(*numbers: int):
    """Two integers as `keras.random.SeedGenerator.next` returns them."""
    return ops.convert_to_tensor(numbers, dtype="uint32" if BACKEND == "jax" else "int64")


def gradients(function: Callable, *arrays: np.ndarray) -> list[np.ndarray]:
    """Gradients of a scalar function with respect to each of its arrays."""
    if BACKEND == "jax":
        import jax

        found = jax.jit(jax.grad(function, argnums=tuple(range(len(arrays)))))(*arrays)
        return [to_numpy(gradient) for gradient in found]
    import tensorflow as tf

    inputs = [tf.convert_to_tensor(array) for array in arrays]
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        result = function(*inputs)
    found = tape.gradient(result, inputs, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return [to_numpy(gradient) for gradient in found]


def fill_weights(layer: keras.Layer, seed: int = 0, scale: float = 0.3) -> None:
    """Gives every trained weight of a built layer random values, so that zeros and unit gains hide no error."""
    generator = np.random.default_rng(seed)
    for weight in layer.trainable_weights:
        weight.assign(scale * generator.normal(size=weight.shape))


def _tensors(inputs):
    return keras.tree.map_structure(ops.convert_to_tensor, dict(inputs))


def _built(case: LayerCase, **options) -> keras.Layer:
    """The layer, built by a symbolic call."""
    layer = case.make(**options)
    layer(**_symbols(case.inputs))
    return layer


def _run(case: LayerCase, layer: Callable, inputs: Mapping[str, Any]):
    return _call(case, layer)(_tensors(inputs))


@functools.cache
def _call(case: LayerCase, layer: Callable) -> Callable:
    """The layer's call with the weights it has at first; under jit on JAX, compiled once for each shape."""

    def call(tensors):
        return case.read(layer(**tensors))

    return compiled(call)["jit"] if BACKEND == "jax" else call


@functools.cache
def _filled(case: LayerCase) -> tuple[keras.Layer, np.ndarray]:
    """The built layer with random weights, and its output; once for all checks, which must not change it."""
    layer = _built(case)
    fill_weights(layer)
    return layer, to_numpy(_run(case, layer, case.inputs))


def check_shape_and_dtypes(case: LayerCase, tmp_path: Path) -> None:
    """Shape, dtype and finite values under each dtype policy, close to the float32 values."""
    reference, expected = _filled(case)
    assert expected.shape == case.output_shape
    assert expected.dtype == (case.output_dtype or "float32")
    assert np.isfinite(expected).all()
    for policy, tolerance in HALF_POLICIES.items():
        layer = _built(case, dtype=policy)
        layer.set_weights(reference.get_weights())
        output = _run(case, layer, case.inputs)
        expected_dtype = case.output_dtype or layer.compute_dtype
        assert keras.backend.standardize_dtype(output.dtype) == expected_dtype, policy
        assert all(w.dtype == "float32" for w in layer.trainable_weights), policy
        values = to_numpy(output)
        assert np.isfinite(values).all(), policy
        spread = max(1.0, float(np.abs(expected).max()))
        np.testing.assert_allclose(values, expected, rtol=0, atol=tolerance * spread, err_msg=policy)


def check_config(case: LayerCase, tmp_path: Path) -> None:
    """`from_config(get_config())` is the same layer, through JSON too."""
    layer, expected = _filled(case)
    config = layer.get_config()
    again = type(layer).from_config(json.loads(json.dumps(config)))
    assert again.get_config() == config
    again(**_symbols(case.inputs))
    again.set_weights(layer.get_weights())
    np.testing.assert_array_equal(to_numpy(_run(case, again, case.inputs)), expected)


def check_file(case: LayerCase, tmp_path: Path) -> None:
    """A small model around the layer is loaded from a `.keras` file, in safe mode, with the same outputs."""
    layer, expected = _filled(case)
    symbols = _symbols(case.inputs)
    fields = symbols.get("features", symbols)
    model = keras.Model(fields, case.read(layer(**symbols)))
    assert tuple(model.output_shape[1:]) == case.output_shape[1:]
    model.save(tmp_path / "layer.keras")
    again = keras.saving.load_model(tmp_path / "layer.keras", safe_mode=True)
    assert [v.path for v in again.trainable_variables] == [v.path for v in model.trainable_variables]
    output = run(lambda tensors: again(tensors.get("features", tensors)), _tensors(case.inputs))
    np.testing.assert_array_equal(to_numpy(output), expected)


def _symbols(inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _symbols(value)
        if isinstance(value, Mapping)
        else keras.Input(value.shape[1:], dtype=str(value.dtype), name=name)
        for name, value in inputs.items()
    }


def check_compiled(case: LayerCase, tmp_path: Path) -> None:
    """Eager and compiled calls give the same values."""
    layer, _ = _filled(case)
    expected = to_numpy(case.read(layer(**_tensors(case.inputs))))
    for name, function in compiled(lambda inputs: case.read(layer(**inputs))).items():
        output = to_numpy(function(_tensors(case.inputs)))
        np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-5, err_msg=name)


def check_variable_names(case: LayerCase, tmp_path: Path) -> None:
    """Every variable has a unique path: weights are matched by path in files and in weight decay."""
    layer, _ = _filled(case)
    paths = [variable.path for variable in layer.variables]
    assert len(set(paths)) == len(paths), paths


def check_mask(case: LayerCase, tmp_path: Path) -> None:
    """Values at masked positions do not change the other outputs; a bool mask means the same as int32."""
    if case.mask is None:
        return
    layer, expected = _filled(case)
    inputs = dict(case.inputs)
    in_features = case.mask not in inputs
    fields = dict(inputs["features"]) if in_features else inputs
    mask = fields[case.mask]
    assert mask.dtype == np.int32 and (mask == 0).any() and (mask[0] == 1).all()

    as_bool = fields | {case.mask: mask.astype(bool)}
    output = to_numpy(_run(case, layer, {"features": as_bool} if in_features else as_bool))
    np.testing.assert_array_equal(output, expected)

    hidden = set(fields) - {case.mask} if case.hides is None else set(case.hides)
    noisy = fields | {name: _disturbed(fields[name], mask) for name in hidden}
    output = to_numpy(_run(case, layer, {"features": noisy} if in_features else noisy))
    assert np.isfinite(output).all()
    by_position = case.hides is None and expected.ndim == 3
    rows = mask.astype(bool) if by_position else np.ones(len(expected), bool)
    np.testing.assert_allclose(output[rows], expected[rows], rtol=0, atol=1e-6)


def _disturbed(array: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Other values where the mask is 0: far away for floats, another valid id for integers."""
    hidden = mask.reshape(mask.shape + (1,) * (array.ndim - 2)) == 0
    other = array + 50 if array.dtype.kind == "f" else np.where(array > 0, array - 1, 1).astype(array.dtype)
    return np.where(hidden, other, array)


CHECKS = (
    check_shape_and_dtypes,
    check_config,
    check_file,
    check_compiled,
    check_variable_names,
    check_mask,
)
