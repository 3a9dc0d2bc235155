"""Memory of this process."""

import resource
import sys
from pathlib import Path

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def resident_bytes() -> int:
    """Resident memory now; where the system does not tell, the peak so far."""
    return _from_status("VmRSS") or peak_bytes()


def peak_bytes() -> int:
    """Most resident memory since the start of the process or the last `forget_peak`."""
    # On Linux getrusage would also count what the parent held when it started this process.
    found = _from_status("VmHWM")
    if found is not None:
        return found
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def forget_peak() -> None:
    """Counts the peak from now on, where the system lets a process do so."""
    try:
        _RESET.write_text("5")
    except OSError:
        return


def _from_status(name: str) -> int | None:
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    kilobytes = [int(line.split()[1]) for line in lines if line.startswith(f"{name}:")]
    return kilobytes[0] * 1024 if kilobytes else None
