"""Finds a model's layers among the tensors of its exported model by value: exports do not retain layer names."""

from collections.abc import Iterable, Mapping

import numpy as np

# Largest relative error at which a tensor counts as the layer, by quantization. Largest errors of correct exports of
# trained runs: float32 7e-7, float16 3e-4, 8-bit weights .012, all values in 8 bits .08.
TOLERANCES = {"none": 2e-5, "float16": 5e-3, "dynamic": 0.05, "int8": 0.2}


def nearest_errors(
    layers: Mapping[str, np.ndarray], tensors: Iterable[np.ndarray]
) -> dict[str, float | None]:
    """The error of each layer's nearest tensor.

    Args:
        layers: A model's layers by name, any shapes; one of integers must match exactly.
        tensors: Tensors of the exported model for the same input; each is compared with layers of the same size.

    Returns:
        For each layer |tensor - layer| / |layer| (Euclidean; of integers 0 or 1), or None where no tensor
        of its size is finite.
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
    """The first layer without a near tensor; None if there is none.

    Args:
        errors: What `nearest_errors` returned, layers in the order of computation.
        quantization: "none", "float16", "dynamic" or "int8".
    """
    most = TOLERANCES[quantization]
    return next((name for name, error in errors.items() if error is None or error > most), None)
