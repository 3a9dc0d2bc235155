"""python benchmarks/large_start.py ROWS.csv [--minutes 5] [--scratch FOLDER] [-- more flags of training.fit]

Measures the time from the start of `python -m training.fit` to its first training step, then memory and disk
usage: one JSON line per measurement on stdout. Stops the run after some minutes of training. Linux only.
"""

import argparse
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from pathlib import Path

PAGE, TICKS = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")
# The progress bar shows 0 until the first step is done.
STEP = re.compile(rb"[\r ][1-9]\d*/\d+ \[")
LINES, COLUMNS = 24, 120


class MonitoredFit:
    """A fit in a pseudo-terminal, whose progress bar is read."""

    def __init__(self, flags: list[str], scratch: Path):
        self.scratch, self.first_step, self.output = scratch, None, b""
        terminal, end = pty.openpty()
        fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        environment = os.environ | {"TMPDIR": str(scratch)}
        command = [sys.executable, "-m", "training.fit", *flags]
        self.started = time.monotonic()
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=end, env=environment)
        os.close(end)
        self.reader = threading.Thread(target=self._read, args=(terminal,), daemon=True)
        self.reader.start()

    def _read(self, terminal: int) -> None:
        while True:
            try:
                self.output += os.read(terminal, 65536)
            except OSError:  # the other end is closed
                return
            if self.first_step is None and STEP.search(self.output):
                self.first_step = time.monotonic() - self.started

    def rss(self) -> float:
        """Resident memory in MiB."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * PAGE / 2**20

    def processor_seconds(self) -> float:
        """User and system time of all threads."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def disk(self) -> float:
        """Size of the scratch folder in MiB."""
        return sum(path.stat().st_size for path in self.scratch.rglob("*") if path.is_file()) / 2**20

    def open_files(self) -> int:
        """Number of open file descriptors."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


def main() -> int:
    """Runs and measures a fit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", type=Path)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--every", type=float, default=20.0, help="seconds between lines")
    parser.add_argument("--scratch", type=Path)
    arguments = sys.argv[1:]
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options = parser.parse_args(arguments[:end])
    with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
        scratch = Path(folder) / "scratch"
        scratch.mkdir()
        flags = ["--data.train", str(options.rows), "--out", f"{folder}/run", *arguments[end + 1 :]]
        fit = MonitoredFit(flags, scratch)
        try:
            code = monitor(fit, options.minutes, options.every)
        finally:
            fit.process.send_signal(signal.SIGTERM)
            fit.process.wait()
        fit.reader.join(5)
    print(fit.output.decode(errors="replace"), file=sys.stderr)
    return code


def monitor(fit: MonitoredFit, minutes: float, every: float) -> int:
    """Prints measurements until the time is over; returns 1 if the fit ended before its first step."""
    peak, next_line, is_started = 0.0, 0.0, False
    while fit.process.poll() is None:
        seconds = time.monotonic() - fit.started
        peak = max(peak, fit.rss())
        line = {"seconds": round(seconds, 1), "processor_seconds": round(fit.processor_seconds(), 1)}
        line |= {"rss_mib": round(fit.rss()), "disk_mib": round(fit.disk())}
        if fit.first_step is not None and not is_started:
            first = {"first_step_seconds": round(fit.first_step, 1), "peak_mib": round(peak)}
            print(json.dumps(first | line), flush=True)
            is_started, peak = True, 0.0
        elif seconds >= next_line:
            print(json.dumps(line | {"open_files": fit.open_files()}), flush=True)
            next_line = seconds + every
        if fit.first_step is not None and seconds > fit.first_step + 60 * minutes:
            print(json.dumps({"peak_after_first_step_mib": round(peak)}), flush=True)
            return 0
        time.sleep(0.25)
    return int(not is_started)


if __name__ == "__main__":
    sys.exit(main())
