"""Weights in forms that lose less in 8 bits, which exports trace in place of a layer's own weights."""

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from keras import ops

_forms = contextvars.ContextVar[Mapping[int, Any]]("forms", default=MappingProxyType({}))
_inputs = contextvars.ContextVar["dict[int, KernelInputs] | None"]("inputs", default=None)
# Rows whose errors are subtracted from the rows after them in one product.
_BLOCK_ROWS = 64


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
    """A kernel for inputs whose columns are scaled to similar ranges: (x · factors) (W / factors) = x W.

    Columns with outliers may have a product of their own; their factors and rows of the kernel are 0.
    """

    factors: Any  # float [D]
    kernel: Any  # W / factors, float [D, E]
    columns: Any = None  # int32 [K]
    outliers: Any = None  # float [K, E]


class KernelInputs(NamedTuple):
    """Statistics of the inputs of a kernel in a sample."""

    largest: np.ndarray  # largest absolute value of each column, float [D]
    moments: np.ndarray  # mean of xᵀ x over the rows, float [D, D]
    num_rows: int

    def of(self, part: Any) -> "KernelInputs":
        """Those of some of the columns: a mask or indexes."""
        return KernelInputs(self.largest[part], self.moments[part][:, part], self.num_rows)

    def scaled(self, factors: np.ndarray) -> "KernelInputs":
        """Those of the inputs times factors of the columns, float [D]."""
        moments = self.moments * np.outer(factors, factors)
        return KernelInputs(self.largest * factors, moments, self.num_rows)


class FeedForwardKernels(NamedTuple):
    """The weights of a feed-forward network with its hidden units in another order and the second product in parts."""

    expand: Any  # float [D, F] or a SmoothKernel
    bias: Any  # float [F]
    contract: Sequence[Any]  # of each part float [F_p, D] or a SmoothKernel, where the F_p add up to F

    def contracted(self, hidden):
        """The second product, float [B, T, D], of hidden units float [B, T, F]."""
        kernels = [each.kernel if isinstance(each, SmoothKernel) else each for each in self.contract]
        starts = np.cumsum([kernel.shape[0] for kernel in kernels])[:-1].tolist()
        parts = ops.split(hidden, starts, axis=-1) if starts else [hidden]
        first, *others = map(project, parts, self.contract)
        return sum(others, start=first)


def project(inputs, kernel):
    """The product of inputs, float [..., D], and a kernel [D, E], which may be smooth: float [..., E]."""
    if not isinstance(kernel, SmoothKernel):
        return ops.matmul(inputs, kernel)
    scaled = inputs * ops.cast(kernel.factors, inputs.dtype)
    # The bound has no effect, but without it the TFLite converter would multiply the kernel by the factors.
    product = ops.matmul(ops.maximum(scaled, -1e30), kernel.kernel)
    if kernel.columns is None:
        return product
    return product + ops.matmul(ops.take(inputs, kernel.columns, axis=-1), kernel.outliers)


@contextlib.contextmanager
def forms_of_layers(forms: Mapping[int, Any]) -> Iterator[None]:
    """Traces layers with other forms of their weights.

    Args:
        forms: A `ScaledTable` or `FeedForwardKernels` by the `id` of its layer, a kernel or a `SmoothKernel` by that
            of the kernel that it replaces.
    """
    token = _forms.set(forms)
    try:
        yield
    finally:
        _forms.reset(token)


def form_of(owner: Any, own: Any = None) -> Any:
    """The form to trace of the weights of a layer, or of a kernel; without one, `own`."""
    return _forms.get().get(id(owner), own)


@contextlib.contextmanager
def recorded_inputs() -> Iterator[dict[int, KernelInputs]]:
    """Yields the `KernelInputs` of the layers that run eagerly in the block, by the `id` of each kernel."""
    inputs: dict[int, KernelInputs] = {}
    token = _inputs.set(inputs)
    try:
        yield inputs
    finally:
        _inputs.reset(token)


def record_inputs(kernel: Any, inputs: Any) -> None:
    """Records inputs, float [B, T, D], of a kernel, if `recorded_inputs` is active."""
    recorded = _inputs.get()
    if recorded is None:
        return
    rows = ops.convert_to_numpy(ops.cast(inputs, "float32")).reshape(-1, inputs.shape[-1])
    largest, moments = np.abs(rows).max(axis=0, initial=0.0), rows.T @ rows
    before = recorded.get(id(kernel))
    num_rows = len(rows)
    if before is not None:
        num_rows += before.num_rows
        largest = np.maximum(largest, before.largest)
        moments += before.moments * before.num_rows
    recorded[id(kernel)] = KernelInputs(largest, moments / max(num_rows, 1), num_rows)


def smooth_kernel(
    kernel: np.ndarray,
    inputs: KernelInputs,
    round_kernel: Callable[[np.ndarray, KernelInputs], np.ndarray],
    apart: bool = False,
) -> SmoothKernel:
    """The form of a kernel for inputs that are rounded with one scale for all columns of a row.

    Columns are scaled so that the range of each equals that of its weights. A pretrained BERT has a few columns that
    are large in nearly every row even so.

    Args:
        kernel: float32 [D, E].
        inputs: Its inputs in a sample.
        round_kernel: Rounds a part of the kernel for its inputs.
        apart: Whether columns of more than twice the root mean square of the median column have their own product.

    Source: Xiao et al. 2022, arXiv:2211.10438, with a migration strength of one half; Dettmers et al. 2022,
        arXiv:2208.07339.
    """
    scaled = inputs.scaled(smoothing_factors(inputs.largest, kernel))
    sizes = np.sqrt(np.diag(scaled.moments))
    outliers = (sizes > 2 * np.median(sizes)) & apart
    rest = ~outliers
    factors = np.zeros(len(kernel), np.float32)
    factors[rest] = smoothing_factors(inputs.largest[rest], kernel[rest])
    smooth = np.zeros_like(kernel)
    smooth[rest] = kernel[rest] / factors[rest, None]
    main = factors, round_kernel(smooth, inputs.scaled(factors))
    if not outliers.any():
        return SmoothKernel(*main)
    columns = np.flatnonzero(outliers).astype(np.int32)
    return SmoothKernel(*main, columns, round_kernel(kernel[columns], inputs.of(columns)))


def is_uneven(ranges: np.ndarray, times: float = 3.0) -> bool:
    """Whether a column has more than so many times the range of the median column, float [D].

    Without such a column, rounding to one scale for all columns loses little.
    """
    return bool(ranges.max() > times * np.median(ranges))


def smoothing_factors(ranges: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """Factors that scale the columns of inputs and the rows of their kernel to the same ranges, float32 [D].

    Args:
        ranges: Largest absolute input of each column, float [D].
        kernel: float [D, E].
    """

    def positive(sizes: np.ndarray) -> np.ndarray:
        # A column that is always zero in the sample may have other values later.
        floor = max(0.01 * np.median(sizes), 1e-6 * sizes.max(), np.finfo(np.float32).tiny)
        return np.maximum(sizes, floor)

    factors = np.sqrt(positive(np.abs(kernel).max(axis=1)) / positive(ranges))
    return (factors / np.median(factors)).astype(np.float32)


def round_for_inputs(kernel: np.ndarray, moments: np.ndarray, damping: float = 0.1) -> np.ndarray:
    """Rounds a kernel to 8 bits with a scale for each column, so that its products with similar inputs change little.

    Row by row, the error of rounding is subtracted from the rows that follow, as far as their inputs correlate. Few
    inputs suffice: the damping adds uncorrelated ones.

    Args:
        kernel: float32 [D, E].
        moments: Mean of xᵀ x over inputs x, float [D, D].
        damping: Variance to add, relative to the mean one of the columns.

    Returns:
        float32 [D, E], multiples of the scales that `round_to_8_bits` finds for it.

    Source: GPTQ, Frantar et al. 2022, arXiv:2210.17323.
    """
    scales = round_to_8_bits(kernel, axis=0)[1]
    variances = np.diag(moments)
    order = np.argsort(-variances, kind="stable")
    added = damping * variances.mean() + np.finfo(np.float32).tiny
    damped = moments[np.ix_(order, order)].astype(np.float64) + added * np.eye(len(kernel))
    shares = np.linalg.cholesky(np.linalg.inv(damped / added)).T
    steps = kernel[order].astype(np.float64) / scales
    # Scales are computed again from the largest value of each column, which must stay the largest.
    largest = np.abs(steps).argmax(axis=0)
    ends = np.sign(steps[largest, np.arange(steps.shape[1])]) * 127
    for start in range(0, len(steps), _BLOCK_ROWS):
        stop = min(start + _BLOCK_ROWS, len(steps))
        errors = np.empty((stop - start, steps.shape[1]))
        for row in range(start, stop):
            rounded = np.where(largest == row, ends, np.clip(np.rint(steps[row]), -127, 127))
            errors[row - start] = (steps[row] - rounded) / shares[row, row]
            steps[row] = rounded
            steps[row + 1 : stop] -= np.outer(shares[row, row + 1 : stop], errors[row - start])
        steps[stop:] -= shares[start:stop, stop:].T @ errors
    rounded = np.empty_like(kernel)
    rounded[order] = steps.astype(np.float32) * scales
    return rounded


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
