"""The workers of a job as processes of one machine: started, heard, told of signals, ended together."""

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from kmha.errors import InputError
from training.cli.parser import FAILED, INTERRUPTED, WRONG_INPUT
from training.distributed.tf_config import TF_CONFIG
from training.runtime.resource_usage import available_cores

logger = logging.getLogger("kmha")

HOST = "localhost"
POLL_SECONDS = 0.1
# After another worker's end: to say why, for the one that knows more; then to leave by itself.
LAST_WORDS_SECONDS = 2.0
LEAVE_SECONDS = 3.0
_GPUS = "CUDA_VISIBLE_DEVICES"


def free_addresses(count: int) -> list[str]:
    """Addresses of this machine at which nobody listens, "host:port"."""
    with contextlib.ExitStack() as stack:
        # All are held until the last is found: no two are the same.
        sockets = [stack.enter_context(socket.create_server((HOST, 0))) for _ in range(count)]
        return [f"{HOST}:{each.getsockname()[1]}" for each in sockets]


def device_environments(workers: int) -> list[dict[str, str]]:
    """What each worker's environment says of the devices that it may use: its share of the GPUs, or of the cores.

    Raises:
        InputError: There are GPUs, but fewer than workers.
    """
    threads = str(max(1, available_cores() // workers))
    names = ("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS")
    cores = {name: threads for name in names if name not in os.environ}
    gpus = _gpus()
    if not gpus:
        return [cores] * workers
    if len(gpus) < workers:
        raise InputError(f"--workers: expected at most as many as GPUs, {len(gpus)}, got {workers}")
    share = len(gpus) // workers
    return [{_GPUS: ",".join(gpus[i * share : (i + 1) * share])} for i in range(workers)]


def _gpus() -> list[str]:
    """Names of the GPUs that may be used."""
    if _GPUS in os.environ:
        return [name for name in os.environ[_GPUS].split(",") if name.strip() not in ("", "-1")]
    found = Path("/proc/driver/nvidia/gpus")
    return [str(number) for number in range(len(list(found.iterdir())))] if found.is_dir() else []


class LocalWorkers:
    """The workers of one start.

    Args:
        addresses: "host:port" of each.
        flags: Of training.fit, the same for all.
        environments: What each has in its environment beside ours.

    Attributes:
        stopped: Whether this process was told to stop.
    """

    def __init__(
        self, addresses: Sequence[str], flags: Sequence[str], environments: Sequence[dict[str, str]]
    ):
        self.addresses, self.flags, self.environments = addresses, flags, environments
        self.stopped = False
        self._children: list[subprocess.Popen[str]] = []

    def run(self) -> int:
        """Starts the workers and waits for their end.

        Returns:
            The exit status of the job: 0 where the chief wrote the run, 130 after a signal, else that of the
            worker that failed first, where it is one of a command; else 1.
        """
        with self._forwarded_signals():
            try:
                readers = [self._start(index) for index in range(len(self.addresses))]
                failed = self._wait()
                self._end()
                for reader in readers:
                    reader.join(LEAVE_SECONDS)
            finally:
                self._signal(signal.SIGKILL)
        statuses = [child.wait() for child in self._children]
        if statuses[0] == 0:
            return 0
        if self.stopped or INTERRUPTED in statuses:
            self.stopped = True
            return INTERRUPTED
        # Who is told of wrong input by another worker may be the first to leave.
        if failed is not None and WRONG_INPUT not in statuses:
            logger.info(f"error: worker {failed} {_ended(statuses[failed])}; the others were ended")
        return WRONG_INPUT if WRONG_INPUT in statuses else FAILED

    def _start(self, index: int) -> threading.Thread:
        cluster = {"cluster": {"worker": list(self.addresses)}, "task": {"type": "worker", "index": index}}
        child = subprocess.Popen(
            [sys.executable, "-m", "training.fit", *self.flags],
            env={**os.environ, **self.environments[index], TF_CONFIG: json.dumps(cluster)},
            stdin=subprocess.DEVNULL,
            stdout=None if index == 0 else subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            # A terminal's Ctrl-C must not reach the workers twice.
            start_new_session=True,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
        self._children.append(child)
        assert child.stderr is not None
        reader = threading.Thread(target=_relay, args=(child.stderr, index), daemon=True)
        reader.start()
        return reader

    def _wait(self) -> int | None:
        """Waits until all have ended or one has failed; returns which."""
        while any(child.poll() is None for child in self._children):
            for index, child in enumerate(self._children):
                if child.poll() not in (None, 0):
                    return index
            time.sleep(POLL_SECONDS)
        return next((index for index, child in enumerate(self._children) if child.returncode), None)

    def _end(self) -> None:
        """Ends the workers that are left: given time, asked, made to."""
        for seconds, number in ((LAST_WORDS_SECONDS, signal.SIGTERM), (LEAVE_SECONDS, signal.SIGKILL)):
            end = time.monotonic() + seconds
            while any(child.poll() is None for child in self._children) and time.monotonic() < end:
                time.sleep(POLL_SECONDS)
            self._signal(number)

    def _signal(self, number: int) -> None:
        for child in self._children:
            if child.poll() is None:
                child.send_signal(number)

    @contextlib.contextmanager
    def _forwarded_signals(self) -> Iterator[None]:
        """Passes SIGINT and SIGTERM on to the workers, which agree on where they stop."""

        def forward(number, frame):
            self.stopped = True
            self._signal(number)

        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _relay(lines: IO[str], index: int) -> None:
    with lines:
        for line in lines:
            logger.info(f"[{index}] {line.rstrip()}")


def _ended(status: int) -> str:
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"ended with status {status}"
