"""Finds a model's layers among the tensors of its exported copy by their numbers: names do not survive an export."""

from collections.abc import Iterable, Mapping

import numpy as np

# Relative error up to which a tensor counts as the layer, by how the copy was quantized. Worst of honest exports of
# trained runs: float32 7e-7, float16 3e-4, 8-bit weights .012, all values in 8 bits .08.
TOLERANCES = {"none": 2e-5, "float16": 5e-3, "dynamic": 0.05, "int8": 0.2}


def nearest_errors(
    layers: Mapping[str, np.ndarray], tensors: Iterable[np.ndarray]
) -> dict[str, float | None]:
    """How far each layer is from the tensor that comes nearest.

    Args:
        layers: A model's layers by name, any shapes; one of integers is met exactly or not at all.
        tensors: Of the copy, for the same input; compared with layers of as many values, in order.

    Returns:
        For each layer |tensor - layer| / |layer| (Euclidean; of integers 0 or 1), or None where no tensor has its
        number of values or is finite.
    """
    expected: dict[int, list[str]] = {}
    for name, layer in layers.items():
        expected.setdefault(layer.size, []).append(name)
    errors: dict[str, float | None] = dict.fromkeys(layers)
    for tensor in tensors:
        for name in expected.get(tensor.size, ()):
            error, best = _error(layers[name], tensor), errors[name]
            if np.isfinite(error) and (best is None or error < best):
                errors[name] = error
    return errors


def _error(layer: np.ndarray, tensor: np.ndarray) -> float:
    if layer.dtype.kind == "i":
        return float(tensor.dtype.kind != "i" or (tensor.ravel() != layer.ravel()).any())
    flat = layer.ravel().astype(np.float64)
    return float(np.linalg.norm(tensor.ravel() - flat) / max(float(np.linalg.norm(flat)), 1e-12))


def first_divergent(errors: Mapping[str, float | None], quantization: str) -> str | None:
    """The first layer that no tensor comes near; None where each is met.

    Args:
        errors: What `nearest_errors` returned, layers in the order of computing.
        quantization: "none", "float16", "dynamic" or "int8".
    """
    most = TOLERANCES[quantization]
    return next((name for name, error in errors.items() if error is None or error > most), None)
