import mmap
import sys

import numpy as np
import pytest

from export.benchmark.worker import peak_bytes, reset_peak, resident_bytes

linux = pytest.mark.skipif(sys.platform != "linux", reason="other systems do not report it exactly")
SIZE = 64_000_000


def test_the_peak_is_at_least_the_resident_memory():
    assert peak_bytes() >= resident_bytes() > 1_000_000


@linux
def test_the_peak_includes_freed_memory_until_it_is_reset():
    before = resident_bytes()
    # mmap allocates from the system; malloc may reuse memory or retain it.
    with mmap.mmap(-1, SIZE) as block:
        np.frombuffer(block, np.uint8)[:] = 1
        assert resident_bytes() > before + 0.9 * SIZE
    assert peak_bytes() > before + 0.9 * SIZE
    reset_peak()
    assert peak_bytes() < before + 0.9 * SIZE
