import mmap
import sys

import numpy as np
import pytest

from export.benchmark.worker import forget_peak, peak_bytes, resident_bytes

linux = pytest.mark.skipif(sys.platform != "linux", reason="others do not tell, or not so exactly")
SIZE = 64_000_000


def test_the_peak_is_never_below_what_is_resident():
    assert peak_bytes() >= resident_bytes() > 1_000_000


@linux
def test_the_peak_remembers_what_is_gone_until_it_is_forgotten():
    before = resident_bytes()
    # Straight from the system: what malloc gives may have been there before, and may stay.
    with mmap.mmap(-1, SIZE) as block:
        np.frombuffer(block, np.uint8)[:] = 1
        assert resident_bytes() > before + 0.9 * SIZE
    assert peak_bytes() > before + 0.9 * SIZE
    forget_peak()
    assert peak_bytes() < before + 0.9 * SIZE
