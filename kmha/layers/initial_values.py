"""Random initial values of tables and kernels, which models that get all weights from elsewhere leave out."""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import keras

_left_out = contextvars.ContextVar("left_out", default=False)


@contextlib.contextmanager
def zeros_at_first() -> Iterator[None]:
    """Builds encoders with zeros in place of random numbers, which take half the time of building a large one.

    All their weights must be assigned afterwards.
    """
    token = _left_out.set(True)
    try:
        yield
    finally:
        _left_out.reset(token)


def normal(stddev: float = 0.02) -> Any:
    """Initializer of random numbers with a normal distribution, cut off at two standard deviations."""
    return initial(keras.initializers.TruncatedNormal(stddev=stddev))


def initial(initializer: Any) -> Any:
    """The initializer, or that of zeros inside of `zeros_at_first`."""
    return "zeros" if _left_out.get() else initializer
