"""What a run costs: seconds by stage, and the most memory at any time."""

import contextlib
import math
import os
import resource
import sys
import time
from collections.abc import Iterator
from typing import Any


class Cost:
    """Adds up the seconds of each stage."""

    def __init__(self):
        self._seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        """Counts the time in the block as that of a stage."""
        started = time.monotonic()
        try:
            yield
        finally:
            self._seconds[stage] = self._seconds.get(stage, 0.0) + time.monotonic() - started

    def values(self, weights: int) -> dict[str, Any]:
        """JSON values: seconds by stage, peak memory of the process and of its GPUs in bytes, cores, and weights.

        Args:
            weights: Trained numbers of the model.
        """
        return {
            "seconds": {stage: round(seconds, 1) for stage, seconds in self._seconds.items()},
            "peak_memory_bytes": peak_memory_bytes(),
            "devices": _device_memory(),
            "cores": available_cores(),
            "weights": weights,
        }


def count_trainable_weights(model: Any) -> int:
    """How many numbers of a Keras model are trained, embeddings included."""
    return sum(math.prod(variable.shape) for variable in model.trainable_variables)


def peak_memory_bytes() -> int:
    """The most memory that this process has had at any time, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts in KiB, macOS in bytes.
    return peak if sys.platform == "darwin" else 1024 * peak


def _device_memory() -> dict[str, int]:
    """The most memory that TensorFlow has had on each GPU, in bytes; empty without one."""
    import tensorflow as tf

    found = {}
    for device in tf.config.list_logical_devices("GPU"):
        with contextlib.suppress(ValueError):  # not every kind of device tells
            name = device.name.removeprefix("/device:")
            found[name] = int(tf.config.experimental.get_memory_info(name)["peak"])
    return found


def available_cores() -> int:
    """The cores that this process may use; all of the machine's where the system does not say which."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
