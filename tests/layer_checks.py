"""What every layer must hold, on whichever Keras backend runs the tests.

A `LayerCase` says how to make a layer and what to call it with; each function in `CHECKS` takes one case.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

BACKEND = keras.backend.backend()
POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")


@dataclasses.dataclass(frozen=True)
class LayerCase:
    """One layer under one set of arguments.

    Attributes:
        make: Makes the layer from keyword arguments that every Keras layer has (name, dtype).
        inputs: Call arguments by name: arrays [B, …], or dictionaries of such.
        output_shape: Of the call's one output.
        mask: Name of the int32 mask [B, T] among the inputs (or inside the features), if the layer takes one.
        output_dtype: None means the policy's compute dtype.
    """

    make: Callable[..., keras.Layer]
    inputs: Mapping[str, Any]
    output_shape: tuple[int, ...]
    mask: str | None = None
    output_dtype: str | None = None


def to_numpy(tensor) -> np.ndarray:
    """The values as NumPy knows them: half-size floats become float32."""
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

    return {"graph": tf.function(function), "xla": tf.function(function, jit_compile=True)}


def gradients(function: Callable, *arrays: np.ndarray) -> list[np.ndarray]:
    """Gradients of a scalar function with respect to each of its arrays."""
    if BACKEND == "jax":
        import jax

        found = jax.grad(function, argnums=tuple(range(len(arrays))))(*map(ops.convert_to_tensor, arrays))
        return [to_numpy(gradient) for gradient in found]
    import tensorflow as tf

    inputs = [tf.convert_to_tensor(array) for array in arrays]
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        result = function(*inputs)
    found = tape.gradient(result, inputs, unconnected_gradients="zero")
    return [to_numpy(gradient) for gradient in found]


def fill_weights(layer: keras.Layer, seed: int = 0, scale: float = 0.3) -> None:
    """Gives every weight of a built layer random values, so that zero biases and unit gains hide nothing."""
    generator = np.random.default_rng(seed)
    layer.set_weights([scale * generator.normal(size=w.shape) for w in layer.weights])


def _tensors(inputs):
    return keras.tree.map_structure(ops.convert_to_tensor, dict(inputs))


def _called(case: LayerCase, layer: keras.Layer | None = None, inputs=None):
    """The layer (made and filled if not given) and its output."""
    inputs = _tensors(case.inputs if inputs is None else inputs)
    if layer is None:
        layer = case.make()
        layer(**inputs)
        fill_weights(layer)
    return layer, layer(**inputs)


def check_shape_and_dtypes(case: LayerCase, tmp_path: Path) -> None:
    """Shape, dtype and finite values under each dtype policy, close to the float32 values."""
    reference, expected = _called(case)
    expected = to_numpy(expected)
    assert expected.shape == case.output_shape
    for policy in POLICIES:
        layer = case.make(dtype=policy)
        layer(**_tensors(case.inputs))
        layer.set_weights(reference.get_weights())
        output = layer(**_tensors(case.inputs))
        wanted = case.output_dtype or layer.compute_dtype
        assert keras.backend.standardize_dtype(output.dtype) == wanted, policy
        assert all(w.dtype == "float32" for w in layer.trainable_weights), policy
        values = to_numpy(output)
        assert np.isfinite(values).all(), policy
        tolerance = {"float32": 1e-6, "mixed_float16": 0.02, "mixed_bfloat16": 0.15}[policy]
        spread = max(1.0, float(np.abs(expected).max()))
        np.testing.assert_allclose(values, expected, rtol=0, atol=tolerance * spread, err_msg=policy)


def check_config(case: LayerCase, tmp_path: Path) -> None:
    """`from_config(get_config())` is the same layer, through JSON too."""
    layer, expected = _called(case)
    config = layer.get_config()
    again = type(layer).from_config(json.loads(json.dumps(config)))
    assert again.get_config() == config
    again(**_tensors(case.inputs))
    again.set_weights(layer.get_weights())
    _, output = _called(case, again)
    np.testing.assert_array_equal(to_numpy(output), to_numpy(expected))


def check_file(case: LayerCase, tmp_path: Path) -> None:
    """A small model around the layer comes back from a `.keras` file, in safe mode, with the same answers."""
    layer, expected = _called(case)
    symbols = keras.tree.map_structure(
        lambda array: keras.Input(array.shape[1:], dtype=str(array.dtype)), dict(case.inputs)
    )
    model = keras.Model(symbols, layer(**symbols))
    assert tuple(model.output_shape[1:]) == case.output_shape[1:]
    model.save(tmp_path / "layer.keras")
    again = keras.saving.load_model(tmp_path / "layer.keras", safe_mode=True)
    assert [v.path for v in again.trainable_variables] == [v.path for v in model.trainable_variables]
    np.testing.assert_array_equal(to_numpy(again(_tensors(case.inputs))), to_numpy(expected))


def check_compiled(case: LayerCase, tmp_path: Path) -> None:
    """Eager and compiled calls give the same values."""
    layer, expected = _called(case)
    for name, function in compiled(lambda inputs: layer(**inputs)).items():
        output = to_numpy(function(_tensors(case.inputs)))
        np.testing.assert_allclose(output, to_numpy(expected), rtol=1e-5, atol=1e-5, err_msg=name)


def check_variable_names(case: LayerCase, tmp_path: Path) -> None:
    """Every variable has a path of its own: weights are matched by path in files and in weight decay."""
    layer, _ = _called(case)
    paths = [variable.path for variable in layer.variables]
    assert len(set(paths)) == len(paths), paths


def check_mask(case: LayerCase, tmp_path: Path) -> None:
    """What stands at masked positions changes nothing at the others; a bool mask means the same as int32."""
    if case.mask is None:
        return
    layer, expected = _called(case)
    expected = to_numpy(expected)
    inputs = dict(case.inputs)
    in_features = case.mask not in inputs
    fields = dict(inputs["features"]) if in_features else inputs
    mask = fields[case.mask]
    assert mask.dtype == np.int32 and (mask == 0).any() and (mask[0] == 1).all()

    as_bool = fields | {case.mask: mask.astype(bool)}
    _, output = _called(case, layer, {"features": as_bool} if in_features else as_bool)
    np.testing.assert_array_equal(to_numpy(output), expected)

    noisy = {name: _disturbed(array, mask) if name != case.mask else array for name, array in fields.items()}
    _, output = _called(case, layer, {"features": noisy} if in_features else noisy)
    assert np.isfinite(to_numpy(output)).all()
    rows = mask.astype(bool) if expected.ndim == 3 else np.ones(len(mask), bool)
    np.testing.assert_allclose(to_numpy(output)[rows], expected[rows], rtol=0, atol=1e-6)


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
