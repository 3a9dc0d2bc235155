"""Weights in forms that lose less in 8 bits, which exports trace in place of a layer's own weights."""

import contextlib
import contextvars
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from keras import ops

_forms = contextvars.ContextVar[Mapping[int, Any]]("forms", default=MappingProxyType({}))
_ranges = contextvars.ContextVar[dict[int, np.ndarray] | None]("ranges", default=None)


class ScaledTable(NamedTuple):
    """A table in 8 bits: row v is values[v] · scale, and if there are row scales, · row_scales[v]."""

    values: Any  # int8 [V, D]
    scale: Any  # float [D] or []
    row_scales: Any = None  # int32 [V, 1]

    def take(self, ids, dtype: str):
        """The rows, [..., D], of int32 ids of any shape."""
        rows, scale = ops.cast(ops.take(self.values, ids, axis=0), dtype), ops.cast(self.scale, dtype)
        if self.row_scales is None:
            return rows * scale
        return rows * (ops.cast(ops.take(self.row_scales, ids, axis=0), dtype) * scale)


class SmoothKernel(NamedTuple):
    """A kernel for inputs whose columns are scaled to similar ranges: (x · factors) (W / factors) = x W."""

    factors: Any  # float [D]
    kernel: Any  # W / factors, float [D, E]


class HiddenUnits(NamedTuple):
    """Some of the hidden units of a feed-forward network; both kernels may be smooth."""

    kernel: Any  # float [D, F]
    bias: Any  # float [F]
    contract: Any  # float [F, D]


def project(inputs, kernel):
    """The product of inputs, float [..., D], and a kernel [D, E], which may be smooth: float [..., E]."""
    if not isinstance(kernel, SmoothKernel):
        return ops.matmul(inputs, kernel)
    scaled = inputs * ops.cast(kernel.factors, inputs.dtype)
    # The bound has no effect, but without it the TFLite converter would multiply the kernel by the factors.
    return ops.matmul(ops.maximum(scaled, -1e30), kernel.kernel)


@contextlib.contextmanager
def forms_of_layers(
    forms: Mapping[int, ScaledTable | SmoothKernel | Sequence[HiddenUnits]],
) -> Iterator[None]:
    """Traces layers with other forms of their weights, by the `id` of each layer."""
    token = _forms.set(forms)
    try:
        yield
    finally:
        _forms.reset(token)


def form_of(layer: Any, own: Any = None) -> Any:
    """The form of a layer's weights to trace; without one, `own`."""
    return _forms.get().get(id(layer), own)


@contextlib.contextmanager
def recorded_input_ranges() -> Iterator[dict[int, np.ndarray]]:
    """Yields the largest absolute input of each column, float [D], of the layers that run eagerly in the block.

    Keys are the `id` of each layer that calls `record_inputs`.
    """
    ranges: dict[int, np.ndarray] = {}
    token = _ranges.set(ranges)
    try:
        yield ranges
    finally:
        _ranges.reset(token)


def record_inputs(layer: Any, inputs: Any) -> None:
    """Records inputs, float [B, T, D], of a layer, if `recorded_input_ranges` is active."""
    ranges = _ranges.get()
    if ranges is not None:
        largest = np.abs(ops.convert_to_numpy(inputs)).max(axis=(0, 1), initial=0.0)
        ranges[id(layer)] = np.maximum(largest, ranges.get(id(layer), 0.0))


def smoothing_factors(ranges: np.ndarray, kernel: np.ndarray, times: float = 3.0) -> np.ndarray | None:
    """Factors that scale the columns of inputs and the rows of their kernel to the same ranges, float32 [D].

    None if no column has more than so many times the range of the median column: then rounding loses little. A
    pretrained BERT has a few such columns, and each token has one scale for all of its columns.

    Args:
        ranges: Largest absolute input of each column, float [D].
        kernel: float [D, E].
        times: The limit.

    Source: Xiao et al. 2022, arXiv:2211.10438, with a migration strength of one half.
    """
    if ranges.max() <= times * np.median(ranges):
        return None

    def positive(sizes: np.ndarray) -> np.ndarray:
        # A column that is always zero in the sample may have other values later.
        floor = max(0.01 * np.median(sizes), 1e-6 * sizes.max(), np.finfo(np.float32).tiny)
        return np.maximum(sizes, floor)

    factors = np.sqrt(positive(np.abs(kernel).max(axis=1)) / positive(ranges))
    return (factors / np.median(factors)).astype(np.float32)


def round_to_8_bits(weights: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Rounds float32 [V, D] to int8 [V, D] times scales that are equal along an axis.

    The scales are float32, of axis 1 [V, 1] for each row and of axis 0 [1, D] for each column. With one scale for the
    whole table, most rows would have few of the 255 values.
    """
    largest = np.abs(weights).max(axis=axis, keepdims=True)
    scales = np.maximum(largest, np.finfo(np.float32).tiny) / np.float32(127)
    return np.rint(weights / scales).astype(np.int8), scales


def outlier_rows(kernel: np.ndarray, times: float = 2.5) -> np.ndarray:
    """Whether the largest weight of each row is more than so many times that of the median row; bool [F].

    A pretrained BERT has a few such rows in each network. In one product they decide the scale of all.

    Source: Dettmers et al. 2022, arXiv:2208.07339.
    """
    largest = np.abs(kernel).max(axis=1)
    return largest > times * np.median(largest)
