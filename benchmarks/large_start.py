"""python benchmarks/large_start.py ROWS.csv [--minutes 5] [--scratch FOLDER] [-- more flags of training.fit]

How long `python -m training.fit` takes from its start to its first training step, and how memory and disk go from
there: JSON on stdout, a line for each look. The run is stopped after some minutes of training. Linux only.
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
# The bar stands at 0 until the first step is done.
STEP = re.compile(rb"[\r ][1-9]\d*/\d+ \[")
LINES, COLUMNS = 24, 120


class Watched:
    """A fit whose bar is read from a terminal of its own."""

    def __init__(self, flags: list[str], scratch: Path):
        self.scratch, self.first_step, self.shown = scratch, None, b""
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
                self.shown += os.read(terminal, 65536)
            except OSError:  # the other end is closed
                return
            if self.first_step is None and STEP.search(self.shown):
                self.first_step = time.monotonic() - self.started

    def rss(self) -> float:
        """Resident memory, MiB."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * PAGE / 2**20

    def processor_seconds(self) -> float:
        """Of all threads so far, of the system for them included."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def disk(self) -> float:
        """Of the scratch folder, MiB."""
        return sum(path.stat().st_size for path in self.scratch.rglob("*") if path.is_file()) / 2**20

    def open_files(self) -> int:
        """Descriptors."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


def main() -> int:
    """Watches a fit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", type=Path)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--every", type=float, default=20.0, help="seconds between lines")
    parser.add_argument("--scratch", type=Path)
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    given = parser.parse_args(words[:end])
    with tempfile.TemporaryDirectory(dir=given.scratch) as folder:
        scratch = Path(folder) / "scratch"
        scratch.mkdir()
        flags = ["--data.train", str(given.rows), "--out", f"{folder}/run", *words[end + 1 :]]
        watched = Watched(flags, scratch)
        try:
            code = watch(watched, given.minutes, given.every)
        finally:
            watched.process.send_signal(signal.SIGTERM)
            watched.process.wait()
        watched.reader.join(5)
    print(watched.shown.decode(errors="replace"), file=sys.stderr)
    return code


def watch(watched: Watched, minutes: float, every: float) -> int:
    """Prints what is seen until the time is over; 1 where the fit ended before its first step."""
    peak, next_line, told = 0.0, 0.0, False
    while watched.process.poll() is None:
        seconds = time.monotonic() - watched.started
        peak = max(peak, watched.rss())
        line = {"seconds": round(seconds, 1), "processor_seconds": round(watched.processor_seconds(), 1)}
        line |= {"rss_mib": round(watched.rss()), "disk_mib": round(watched.disk())}
        if watched.first_step is not None and not told:
            first = {"first_step_seconds": round(watched.first_step, 1), "peak_mib": round(peak)}
            print(json.dumps(first | line), flush=True)
            told, peak = True, 0.0
        elif seconds >= next_line:
            print(json.dumps(line | {"open_files": watched.open_files()}), flush=True)
            next_line = seconds + every
        if watched.first_step is not None and seconds > watched.first_step + 60 * minutes:
            print(json.dumps({"peak_after_first_step_mib": round(peak)}), flush=True)
            return 0
        time.sleep(0.25)
    return int(not told)


if __name__ == "__main__":
    sys.exit(main())
