"""Runs of training.fit by several processes, and what they leave."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import h5py
import numpy as np

from tests.command_runs import ROOT, clean_environment
from training.distributed.local_launcher import free_addresses
from training.runs.checkpoint_folder import newest_valid_checkpoint, read_progress

BIASES = "attention/vars/2"  # of query, key and value
# On a busy machine, importing TensorFlow may take a minute.
LONGEST_SECONDS = 600


def weights_of(run: Path) -> dict[str, np.ndarray]:
    """Every variable of a run's model, by its place in the file."""
    found: dict[str, np.ndarray] = {}

    def note(name, item):
        if isinstance(item, h5py.Dataset):
            found[name] = np.asarray(item[()], np.float64)

    with (
        zipfile.ZipFile(run / "model.keras") as archive,
        io.BytesIO(archive.read("model.weights.h5")) as data,
    ):
        h5py.File(data).visititems(note)
    assert found
    return found


def apart(first: Path, second: Path, but: str = "nothing", key_biases: bool = True) -> float:
    """Largest difference between the weights of two runs, except those whose names begin with `but`."""
    one, two = weights_of(first), weights_of(second)
    for name in one if not key_biases else ():
        if name.endswith(BIASES):
            one[name], two[name] = (np.delete(each[name], 1, axis=0) for each in (one, two))
    assert one.keys() == two.keys()
    names = [name for name in one if not name.startswith(but)]
    return max(float(np.abs(one[name] - two[name]).max(initial=0)) for name in names)


def losses(run: Path) -> list[float]:
    """Training and validation loss of every epoch of a run; its weights are those of the best epoch only."""
    history = json.loads((run / "metrics.json").read_text("utf-8"))["history"]
    return [epoch[name] for epoch in history for name in ("loss", "val_loss")]


@contextlib.contextmanager
def launched(*words: object) -> Iterator[subprocess.Popen]:
    """The launcher as a process, which is ended with the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "training.launch", *map(str, words)],
        cwd=ROOT,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=LONGEST_SECONDS)


def launch(*words: object) -> tuple[int, str, str]:
    """Status, stdout and stderr of a launch."""
    with launched(*words) as process:
        out, err = process.communicate(timeout=LONGEST_SECONDS)
    return process.returncode, out, err


def worker(index: int, addresses: Sequence[str], *flags: object) -> subprocess.Popen:
    """One worker as a process."""
    cluster = {"cluster": {"worker": list(addresses)}, "task": {"type": "worker", "index": index}}
    return subprocess.Popen(
        [sys.executable, "-m", "training.fit", *map(str, flags)],
        cwd=ROOT,
        env=clean_environment() | {"TF_CONFIG": json.dumps(cluster)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def workers(*flags_of_each: Sequence[object]) -> list[tuple[int, str, str]]:
    """Status, stdout and stderr of workers with flags of their own."""
    addresses = free_addresses(len(flags_of_each))
    processes = [worker(index, addresses, *flags) for index, flags in enumerate(flags_of_each)]
    try:
        ends = [process.communicate(timeout=LONGEST_SECONDS) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, *end) for process, end in zip(processes, ends, strict=True)]


def children_of(process: subprocess.Popen) -> list[int]:
    """Process ids of the workers of a launcher, the chief worker's first."""
    path = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return sorted(int(word) for word in path.read_text().split())


def wait_for_batches(out: Path, batches: int) -> None:
    """Waits until a checkpoint of an unfinished run has recorded this number of batches."""
    folder = out.with_name(f"{out.name}.partial") / "checkpoint"
    end = time.monotonic() + LONGEST_SECONDS
    while time.monotonic() < end:
        # A checkpoint may be removed while it is read.
        with contextlib.suppress(OSError):
            newest = newest_valid_checkpoint(folder)
            if newest and read_progress(newest)["batches_done"] >= batches:
                return
        time.sleep(0.02)
    raise AssertionError(f"no checkpoint of {batches} batches")


def kill(process_id: int, number: int = signal.SIGKILL) -> None:
    os.kill(process_id, number)
