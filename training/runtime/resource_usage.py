"""Time, memory, cores and number of weights of a run."""

import contextlib
import ctypes
import math
import os
import re
import resource
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from training.cli.exceptions import check_stop

# Parameters of mallopt, from glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_LARGEST_THRESHOLD = 2**31 - 1  # bytes; the largest value that mallopt takes

# Names of layers, from the inside out, and of the parts in reports.
_PARTS = {
    "linear": "linear path",
    "ngrams": "n-gram tables",
    "embedding": "token embedding",
    "block": "encoder blocks",
}


class Cost:
    """Measures the seconds of each stage of a run."""

    def __init__(self):
        self._seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def measure(self, stage: str) -> Iterator[None]:
        """Adds the time of the block to that of a stage; first raises a lost KeyboardInterrupt again."""
        check_stop()
        started = time.monotonic()
        try:
            yield
        finally:
            self._seconds[stage] = self._seconds.get(stage, 0.0) + time.monotonic() - started

    def values(self, weights: int, by_part: Mapping[str, int]) -> dict[str, Any]:
        """As JSON values: seconds by stage, peak memory of process and GPUs in bytes, cores, weights, bytes by part."""
        return {
            "seconds": {stage: round(seconds, 1) for stage, seconds in self._seconds.items()},
            "peak_memory_bytes": peak_memory_bytes(),
            "devices": _device_memory(),
            "cores": available_cores(),
            "weights": weights,
            "bytes_by_part": dict(by_part),
        }


def count_trainable_weights(model: Any) -> int:
    """Number of trainable weights of a Keras model, embeddings included."""
    return sum(math.prod(variable.shape) for variable in model.trainable_variables)


def bytes_by_part(model: Any, float_bytes: int = 4) -> dict[str, int]:
    """Bytes of the weights of a built model by part, the largest first; a float has so many bytes."""
    parts: dict[str, int] = {}
    for variable in model.variables:
        if "seed_generator" in variable.path:
            continue
        names = [re.sub(r"_\d+$", "", name) for name in variable.path.split("/")]
        part = next((title for name, title in _PARTS.items() if name in names), "other layers")
        size = float_bytes if "float" in str(variable.dtype) else 1 if "int8" in str(variable.dtype) else 4
        parts[part] = parts.get(part, 0) + size * math.prod(variable.shape)
    return dict(sorted(parts.items(), key=lambda each: -each[1]))


def describe_bytes(parts: Mapping[str, int]) -> str:
    """Parts of at least a hundredth of all in one line, in megabytes."""
    total = sum(parts.values())
    return ", ".join(f"{name} {size / 1e6:.1f} MB" for name, size in parts.items() if 100 * size >= total)


def peak_memory_bytes() -> int:
    """Peak memory of this process."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts in KiB, macOS in bytes.
    return peak if sys.platform == "darwin" else 1024 * peak


def _device_memory() -> dict[str, int]:
    """Peak memory of TensorFlow on each GPU, in bytes; empty without a GPU."""
    import tensorflow as tf

    found = {}
    for device in tf.config.list_logical_devices("GPU"):
        with contextlib.suppress(ValueError):  # some devices do not report it
            name = device.name.removeprefix("/device:")
            found[name] = int(tf.config.experimental.get_memory_info(name)["peak"])
    return found


def available_cores() -> int:
    """Number of cores that this process may use; all cores where the system has no affinity."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def tune_malloc() -> None:
    """Stops glibc from returning freed memory to the system; does nothing without glibc.

    A training step allocates the same gigabytes again and again, and the system fills returned pages with zeros first.
    This makes training 1.04 times as fast (docs/how-to/speed.md).
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, _LARGEST_THRESHOLD)
