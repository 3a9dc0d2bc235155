"""Starts the workers of a job as processes of this machine, relays their output and signals, and ends them together."""

import contextlib
import dataclasses
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from kmha.errors import InputError
from training.cli.exceptions import signal_handler
from training.cli.parser import FAILED, INTERRUPTED, WRONG_INPUT
from training.distributed.tf_config import TF_CONFIG
from training.runtime.resource_usage import available_cores

logger = logging.getLogger("kmha")

HOST = "localhost"
POLL_SECONDS = 0.1
# After a worker failed: time for the others to report the cause, then to exit.
REPORT_SECONDS = 2.0
EXIT_SECONDS = 3.0
_GPUS = "CUDA_VISIBLE_DEVICES"


def free_addresses(count: int) -> list[str]:
    """Unused addresses of this machine, "host:port"."""
    with contextlib.ExitStack() as stack:
        # All sockets stay open until the last is found, so that the addresses differ.
        sockets = [stack.enter_context(socket.create_server((HOST, 0))) for _ in range(count)]
        return [f"{HOST}:{each.getsockname()[1]}" for each in sockets]


def device_environments(workers: int) -> list[dict[str, str]]:
    """Environment variables that give each worker a share of the GPUs or cores; InputError with too few GPUs."""
    threads = str(max(1, available_cores() // workers))
    names = ("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS")
    cores = {name: threads for name in names if name not in os.environ}
    gpus = _gpus()
    if not gpus:
        return [cores] * workers
    if len(gpus) < workers:
        raise InputError(f"--workers: expected at most {len(gpus)}, the number of GPUs, got {workers}")
    share = len(gpus) // workers
    return [{_GPUS: ",".join(gpus[i * share : (i + 1) * share])} for i in range(workers)]


def _gpus() -> list[str]:
    if _GPUS in os.environ:
        return [name for name in os.environ[_GPUS].split(",") if name.strip() not in ("", "-1")]
    found = Path("/proc/driver/nvidia/gpus")
    return [str(number) for number in range(len(list(found.iterdir())))] if found.is_dir() else []


@dataclasses.dataclass
class LocalWorkers:
    """The worker processes of one start."""

    addresses: Sequence[str]  # "host:port" of each worker
    flags: Sequence[str]  # of training.fit, for all workers
    environments: Sequence[dict[str, str]]  # additional environment variables of each worker
    stopped: bool = False  # whether a signal stopped this process

    def __post_init__(self):
        self._children: list[subprocess.Popen[str]] = []

    def run(self) -> int:
        """Starts the workers and waits for them.

        Returns the exit status of the job: 0 if the chief worker wrote the run, 130 after a signal, 2 if a worker
        reported wrong input, else 1.
        """
        with signal_handler(self._forward, signal.SIGINT, signal.SIGTERM):
            try:
                readers = [self._start(index) for index in range(len(self.addresses))]
                failed = self._wait()
                self._end_all()
                for reader in readers:
                    reader.join(EXIT_SECONDS)
            finally:
                self._signal(signal.SIGKILL)
        statuses = [child.wait() for child in self._children]
        if statuses[0] == 0:
            return 0
        if self.stopped or INTERRUPTED in statuses:
            self.stopped = True
            return INTERRUPTED
        # With wrong input all workers exit, in any order.
        if failed is not None and WRONG_INPUT not in statuses:
            logger.info(
                f"error: worker {failed} {_describe_exit(statuses[failed])}; the other workers were stopped"
            )
        return WRONG_INPUT if WRONG_INPUT in statuses else FAILED

    def _start(self, index: int) -> threading.Thread:
        cluster = {"cluster": {"worker": list(self.addresses)}, "task": {"type": "worker", "index": index}}
        child = subprocess.Popen(
            [sys.executable, "-m", "training.fit", *self.flags],
            env={**os.environ, **self.environments[index], TF_CONFIG: json.dumps(cluster, allow_nan=False)},
            stdin=subprocess.DEVNULL,
            stdout=None if index == 0 else subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            # Otherwise Ctrl-C in a terminal would reach the workers twice.
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
        """Waits until all workers ended or one failed; returns the index of the failed one."""
        while any(child.poll() is None for child in self._children):
            for index, child in enumerate(self._children):
                if child.poll() not in (None, 0):
                    return index
            time.sleep(POLL_SECONDS)
        return next((index for index, child in enumerate(self._children) if child.returncode), None)

    def _end_all(self) -> None:
        """Waits for the remaining workers, then sends SIGTERM, then SIGKILL."""
        for seconds, number in ((REPORT_SECONDS, signal.SIGTERM), (EXIT_SECONDS, signal.SIGKILL)):
            end = time.monotonic() + seconds
            while any(child.poll() is None for child in self._children) and time.monotonic() < end:
                time.sleep(POLL_SECONDS)
            self._signal(number)

    def _signal(self, number: int) -> None:
        for child in self._children:
            if child.poll() is None:
                child.send_signal(number)

    def _forward(self, number, frame):
        """Forwards a signal to the workers, which stop after the same batch."""
        self.stopped = True
        self._signal(number)


def _relay(lines: IO[str], index: int) -> None:
    with lines:
        for line in lines:
            logger.info(f"[{index}] {line.rstrip()}")


def _describe_exit(status: int) -> str:
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"exited with status {status}"
