"""The benchmark of planted faults fits the code as it is now."""

import pytest

from benchmarks.planted_faults import FAULTS, ROOT


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_a_fault_changes_one_place_of_the_code(fault):
    assert (ROOT / fault.path).read_text("utf-8").count(fault.old) == 1
    assert all((ROOT / path).exists() for path in fault.tests.split())
