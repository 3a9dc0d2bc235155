"""Fits in processes of their own, to be watched, stopped and killed."""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.command_runs import ROOT, clean_environment
from training.runs.checkpoint_folder import (
    find_damage,
    list_checkpoints,
    newest_valid_checkpoint,
    read_progress,
)

LONGEST_S = 900.0


def say(message: str) -> None:
    """A figure of the soak, on a line of its own."""
    print(f"\n    {message}", end="", flush=True)


@dataclasses.dataclass
class Ended:
    """How a process ended and what it said."""

    status: int
    out: str
    err: str

    @property
    def last(self) -> str:
        """The last line of its progress."""
        return self.err.splitlines()[-1] if self.err else ""


class Fit:
    """A fit that writes to `run` in a folder; as a context manager it does not outlive the block.

    Args:
        folder: Working folder of the process; what it says goes there too.
        flags: Of `training.fit`, but --out.
        run: Path of the run, as seen from there.
        temporary: Where its temporary files go; None: there too.
        module: What is started.
        before: Called in the process before it starts.
    """

    def __init__(
        self,
        folder: Path,
        flags: Sequence[str],
        run: str = "run",
        temporary: Path | None = None,
        module: Sequence[str] = ("training.fit",),
        before: Callable[[], None] | None = None,
    ):
        self.folder, self.run = folder, run

        def begin() -> None:
            # A shell may have had the soak ignore it, in the background.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            if before is not None:
                before()

        temporary = temporary or folder / "temporary"
        temporary.mkdir(exist_ok=True)
        self._err, self._out = (folder / f"{Path(run).name}.{stream}" for stream in ("err", "out"))
        with open(self._out, "wb") as out, open(self._err, "wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *module, *flags, f"--out={run}"],
                cwd=folder,
                env={**clean_environment(), "TMPDIR": str(temporary), "PYTHONPATH": str(ROOT)},
                stdout=out,
                stderr=err,
                preexec_fn=begin,
                start_new_session=True,
            )

    @property
    def partial(self) -> Path:
        """The unfinished run."""
        return self.folder / f"{self.run}.partial"

    @property
    def checkpoints(self) -> list[Path]:
        """Its whole checkpoints, the newest first."""
        return [path for path in list_checkpoints(self.partial / "checkpoint") if not find_damage(path)]

    def said(self) -> str:
        """Its progress so far."""
        return self._err.read_text("utf-8", errors="replace")

    def wait_for(self, what: Callable[[], Any]) -> bool:
        """Waits until something is so; False: the process ended before."""
        until = time.monotonic() + LONGEST_S
        while not what():
            if self.process.poll() is not None:
                return bool(what())
            assert time.monotonic() < until, self.said()[-3000:]
            time.sleep(0.005)
        return True

    def send(self, number: int) -> None:
        """Sends it a signal."""
        self.process.send_signal(number)

    def end(self) -> Ended:
        """Waits for its end."""
        self.process.wait(LONGEST_S)
        return Ended(self.process.returncode, self._out.read_text("utf-8"), self.said())

    def __enter__(self) -> "Fit":
        """Gives the fit itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the process, and what it has started."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def fitted(folder: Path, flags: Sequence[str], run: str = "run", **options: Any) -> Ended:
    """A fit to its end."""
    with Fit(folder, flags, run, **options) as fit:
        return fit.end()


def killed_after_a_checkpoint(folder: Path, flags: Sequence[str], count: int = 2) -> None:
    """A fit that was killed when it had written some checkpoints."""
    with Fit(folder, flags) as fit:
        assert fit.wait_for(lambda: len(fit.checkpoints) >= count), fit.said()[-3000:]
        fit.send(signal.SIGKILL)
        assert fit.end().status == -signal.SIGKILL


def progress(folder: Path, run: str = "run") -> dict[str, Any]:
    """How far an unfinished run has come; {} without a checkpoint."""
    newest = newest_valid_checkpoint(folder / f"{run}.partial" / "checkpoint")
    return read_progress(newest) if newest else {}


def watched(fit: Fit, every_s: float = 0.5) -> Iterator[tuple[float, float, int]]:
    """Seconds, resident memory in MB and open files of a process, until it ends."""
    started = time.monotonic()
    proc = Path("/proc") / str(fit.process.pid)
    while fit.process.poll() is None:
        try:
            resident = resident_mb(fit.process.pid)
            yield time.monotonic() - started, resident, len(list((proc / "fd").iterdir()))
        except (FileNotFoundError, ProcessLookupError, IndexError):
            return
        time.sleep(every_s)


def resident_mb(pid: int) -> float:
    """Resident memory of a process."""
    pages = int((Path("/proc") / str(pid) / "statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def slope(times: Sequence[float], values: Sequence[float]) -> float:
    """Growth of values with time, by least squares."""
    return float(np.polyfit(times, values, 1)[0])
