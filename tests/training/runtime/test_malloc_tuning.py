"""Freed memory stays with the process, where malloc is glibc's."""

import platform
import subprocess
import sys

import pytest

MIB = 64  # more than glibc reuses by default
SCRIPT = f"""
import resource, sys
from training.runtime.malloc_tuning import tune_malloc
if sys.argv[1] == "keep":
    tune_malloc()
before = 0
for _ in range(4):
    b"x" * ({MIB} << 20)
    now = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    faults, before = now - before, now
print(faults)
"""


def _new_pages(what: str) -> int:
    """Number of new pages when the freed amount is allocated again."""
    done = subprocess.run([sys.executable, "-c", SCRIPT, what], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="malloc here is another")
def test_freed_memory_is_reused():
    assert 10 * _new_pages("keep") < _new_pages("leave")
