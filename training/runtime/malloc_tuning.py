"""What operations free stays with the process, so that the next ones find pages that are there already."""

import contextlib
import ctypes

# Of glibc's malloc.h.
_TRIM_THRESHOLD, _MOST_MAPPED = -1, -4
# What may lie free at the end of the heap before it goes back to the system, bytes: the most that mallopt takes.
_MOST_KEPT = 2**31 - 1


def tune_malloc() -> None:
    """Asks glibc not to give freed memory back after each operation; where there is no glibc, nothing happens.

    A training step frees and asks for the same gigabytes each time, and pages that come from the system are filled with
    zeros first: 1.04 times the tokens a second without that (docs/how-to/speed.md).
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MOST_MAPPED, 0)
        mallopt(_TRIM_THRESHOLD, _MOST_KEPT)
