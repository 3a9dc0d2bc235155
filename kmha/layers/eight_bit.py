"""Weights in forms that lose less in 8 bits, which exports trace in place of a layer's own weights."""

import contextlib
import contextvars
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from keras import ops

_forms = contextvars.ContextVar[Mapping[int, Any]]("forms", default=MappingProxyType({}))


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


class HiddenUnits(NamedTuple):
    """Some of the hidden units of a feed-forward network."""

    kernel: Any  # float [D, F]
    bias: Any  # float [F]
    contract: Any  # float [F, D]


@contextlib.contextmanager
def forms_of_layers(forms: Mapping[int, ScaledTable | Sequence[HiddenUnits]]) -> Iterator[None]:
    """Traces layers with other forms of their weights, by the `id` of each layer."""
    token = _forms.set(forms)
    try:
        yield
    finally:
        _forms.reset(token)


def form_of(layer: Any) -> Any:
    """The form of a layer's weights to trace; None: its own."""
    return _forms.get().get(id(layer))


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
