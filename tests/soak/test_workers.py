"""A worker killed in two-worker training: all restart from the last checkpoint and end with the same weights."""

import importlib.util
import logging
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from tests.command_runs import saved_weights
from tests.soak.fits import Fit, fitted

logger = logging.getLogger("kmha")

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(
        importlib.util.find_spec("training.launch") is None, reason="training.launch is not there"
    ),
]
LAUNCH = ["training.launch", "--workers", "2", "--restarts", "3", "--"]


def workers_of(launcher: int) -> list[int]:
    """Processes of a launcher that train, by their ids."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            words = (folder / "cmdline").read_text().split("\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == launcher and any("training" in word for word in words):
            found.append(int(folder.name))
    return sorted(found)


def flags_of(kinds) -> list[str]:
    # The launcher chooses the checkpoint.
    return [flag for flag in kinds.flags("classify") if flag != "--resume-or-begin"]


@pytest.fixture(scope="module")
def unbroken(kinds, tmp_path_factory) -> dict[str, bytes]:
    """Weights of two uninterrupted workers."""
    folder = tmp_path_factory.mktemp("workers")
    ended = fitted(folder, flags_of(kinds), module=LAUNCH)
    assert ended.status == 0, ended.err[-3000:]
    return saved_weights(folder / "run")


@pytest.mark.parametrize("which", [0, 1])
def test_training_restarts_after_a_killed_worker_with_equal_weights(kinds, unbroken, tmp_path, which):
    with Fit(tmp_path, flags_of(kinds), module=LAUNCH) as fit:
        assert fit.wait_for(lambda: fit.checkpoints), fit.log()[-3000:]
        workers = workers_of(fit.process.pid)
        assert len(workers) == 2
        os.kill(workers[which], signal.SIGKILL)
        ended = fit.end()
    assert ended.status == 0, ended.err[-3000:]
    weights = saved_weights(tmp_path / "run")
    assert weights.keys() == unbroken.keys()
    pairs = [
        (np.frombuffer(weights[name], np.uint8), np.frombuffer(unbroken[name], np.uint8)) for name in weights
    ]
    assert all(np.array_equal(*pair) for pair in pairs)
    logger.info(f"worker {which + 1} of 2 killed: all began again, equal ")
