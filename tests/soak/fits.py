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


def print_figure(message: str) -> None:
    """Prints a measured value of the soak test on a separate line."""
    print(f"\n    {message}", end="", flush=True)


@dataclasses.dataclass
class Ended:
    """Exit status and output of a process."""

    status: int
    out: str
    err: str

    @property
    def last(self) -> str:
        """The last line of its log."""
        return self.err.splitlines()[-1] if self.err else ""


class Fit:
    """A fit that writes to `run` in a folder; as a context manager it does not outlive the block.

    Args:
        folder: Working folder of the process; its output is written there too.
        flags: Flags of `training.fit`, except --out.
        run: Path of the run, relative to `folder`.
        temporary: Folder of its temporary files; None: a folder in `folder`.
        module: Module that is started, with its first arguments.
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
            # A shell that runs the soak tests in the background may set SIGINT to be ignored.
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

    def log(self) -> str:
        """Returns its log so far."""
        return self._err.read_text("utf-8", errors="replace")

    def wait_for(self, condition: Callable[[], Any]) -> bool:
        """Waits until a condition holds; returns False if the process ends before that."""
        until = time.monotonic() + LONGEST_S
        while not condition():
            if self.process.poll() is not None:
                return bool(condition())
            assert time.monotonic() < until, self.log()[-3000:]
            time.sleep(0.005)
        return True

    def send(self, number: int) -> None:
        """Sends it a signal."""
        self.process.send_signal(number)

    def end(self) -> Ended:
        """Waits for its end."""
        self.process.wait(LONGEST_S)
        return Ended(self.process.returncode, self._out.read_text("utf-8"), self.log())

    def __enter__(self) -> "Fit":
        """Returns the fit itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the process, and what it has started."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def fitted(folder: Path, flags: Sequence[str], run: str = "run", **options: Any) -> Ended:
    """Runs a fit to its end."""
    with Fit(folder, flags, run, **options) as fit:
        return fit.end()


def killed_after_a_checkpoint(folder: Path, flags: Sequence[str], count: int = 2) -> None:
    """Runs a fit and kills it after some checkpoints."""
    with Fit(folder, flags) as fit:
        assert fit.wait_for(lambda: len(fit.checkpoints) >= count), fit.log()[-3000:]
        fit.send(signal.SIGKILL)
        assert fit.end().status == -signal.SIGKILL


def progress(folder: Path, run: str = "run") -> dict[str, Any]:
    """Returns the progress of an unfinished run; {} without a checkpoint."""
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
