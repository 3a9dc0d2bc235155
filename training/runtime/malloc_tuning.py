"""Tunes the memory allocator so that freed memory stays with the process."""

import contextlib
import ctypes

# Parameters of mallopt, from glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_LARGEST_THRESHOLD = 2**31 - 1  # bytes; the largest value that mallopt takes


def tune_malloc() -> None:
    """Stops glibc from returning freed memory to the system; does nothing without glibc.

    A training step allocates the same gigabytes again and again, and the system fills returned pages with zeros first.
    This makes training 1.04 times as fast (docs/how-to/speed.md).
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, _LARGEST_THRESHOLD)
