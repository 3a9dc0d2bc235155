"""How many processor cores there are for this process."""

import os


def available_cores() -> int:
    """The cores that this process may use; all of the machine's where the system does not say which."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
