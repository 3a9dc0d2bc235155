import re
import time
from pathlib import Path

import pytest

from training.runtime.resource_usage import Cost, peak_memory_bytes

STATUS = Path("/proc/self/status")


def test_stages_add_up():
    cost = Cost()
    for _ in range(2):
        with cost.measure("training"):
            time.sleep(0.06)
    with cost.measure("judging"):
        pass
    found = cost.values(weights=7)
    assert 0.1 <= found["seconds"]["training"] < 5
    assert found["seconds"]["judging"] < 5 and list(found["seconds"]) == ["training", "judging"]
    assert found["weights"] == 7 and found["cores"] >= 1


@pytest.mark.skipif(not STATUS.exists(), reason="no /proc/self/status")
def test_peak_memory_is_in_bytes():
    (kilobytes,) = re.findall(r"VmHWM:\s*([0-9]+) kB", STATUS.read_text())
    assert peak_memory_bytes() == pytest.approx(1024 * int(kilobytes), rel=0.05)
