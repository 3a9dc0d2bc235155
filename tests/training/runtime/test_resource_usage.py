import platform
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kmha.config import EncoderConfig
from kmha.models.classifier import TextClassifier
from tests.bundles import LINEAR_ROWS, LINEAR_SLOTS, tagger_bundle
from training.runtime.resource_usage import Cost, bytes_by_part, describe_bytes, peak_memory_bytes

STATUS = Path("/proc/self/status")


def test_stages_add_up():
    cost = Cost()
    for _ in range(2):
        with cost.measure("training"):
            time.sleep(0.06)
    with cost.measure("judging"):
        pass
    found = cost.values(weights=7, by_part={"linear path": 28})
    assert 0.1 <= found["seconds"]["training"] < 5
    assert found["seconds"]["judging"] < 5 and list(found["seconds"]) == ["training", "judging"]
    assert found["bytes_by_part"] == {"linear path": 28}
    assert found["weights"] == 7 and found["cores"] >= 1


def test_bytes_by_part():
    model = TextClassifier(
        EncoderConfig(100, 8, 1, 2, intermediate_dim=12, max_length=16), 2, linear_rows=9, linear_slots=(100,)
    )
    model.build()
    parts = bytes_by_part(model, float_bytes=1)
    assert parts["token embedding"] == 8 * (100 + 16)
    # Hash table, weights, squares and bias.
    assert parts["linear path"] == 4 * 100 + 10 * 2 + 10 + 2
    # 8 · 24 + 8 · 8 + 2 · 8 · 12, biases 24 + 8 + 12 + 8, two normalizations.
    assert parts["encoder blocks"] == 192 + 64 + 192 + 52 + 32
    assert bytes_by_part(tagger_bundle().model)["linear path"] == 4 * (LINEAR_SLOTS + 5 * (LINEAR_ROWS + 2))
    assert describe_bytes({"a": 2_000_000, "b": 100}) == "a 2.0 MB"


@pytest.mark.skipif(not STATUS.exists(), reason="no /proc/self/status")
def test_peak_memory_is_in_bytes():
    (kilobytes,) = re.findall(r"VmHWM:\s*([0-9]+) kB", STATUS.read_text())
    assert peak_memory_bytes() == pytest.approx(1024 * int(kilobytes), rel=0.05)


MIB = 64  # more than glibc reuses by default
SCRIPT = f"""
import resource, sys
from training.runtime.resource_usage import tune_malloc
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
