"""kill -9 at random moments, and the same command again: the weights are those of an uninterrupted run."""

import logging
import os
import random
import signal
import time

import pytest

from tests.soak.fits import Fit, progress

logger = logging.getLogger("kmha")

pytestmark = pytest.mark.soak

KILLS = 20
KINDS = ("classify", "accumulated", "float16", "tag", "match", "masked-lm", "distilled", "started")
# Given again, it draws the same moments; where in its work they meet a process is chance all the same.
SEED = int(os.environ.get("SOAK_SEED", time.time_ns() % 10**6))


@pytest.mark.parametrize("number", range(KILLS))
def test_killed_at_a_random_moment(kinds, tmp_path, number):
    kind = KINDS[number % len(KINDS)]
    reference = kinds.of(kind)
    share = random.Random(SEED + number).random()
    while True:
        with Fit(tmp_path, reference.flags) as fit:
            assert fit.wait_for(lambda: fit.checkpoints), fit.said()[-3000:]
            time.sleep(share * reference.seconds)
            fit.send(signal.SIGKILL)
            fit.end()
        if fit.partial.exists():
            break
        # It was over before its moment came; an earlier one, of a new run.
        share *= 0.7
        os.rename(tmp_path / "run", tmp_path / f"over-{share}")
    training_progress = progress(tmp_path)
    writing = any((tmp_path / "run.partial" / "checkpoint").glob("*.partial"))
    batches = len(training_progress["history"]), training_progress["batch"]
    last = fit.said().splitlines()[-1]
    said = kinds.finish(kind, tmp_path)
    assert "damaged" not in said
    logger.info(
        f"{number + 1} of {KILLS} equal, seed {SEED}: {kind}, {share * reference.seconds:.2f} s after its first"
        f" checkpoint, resumed from epoch {batches[0] + 1}, batch {batches[1]}"
        f"{', while a checkpoint was being written' if writing else ''}; it had said: {last[:40]!r} "
    )


def test_killed_before_its_first_checkpoint(kinds, tmp_path):
    reference = kinds.of("classify")
    with Fit(tmp_path, reference.flags) as fit:
        assert fit.wait_for(lambda: (fit.partial / "scratch.txt").exists())
        fit.send(signal.SIGKILL)
        assert fit.end().status == -signal.SIGKILL
    # Its temporary folder goes with the next start.
    assert list((tmp_path / "temporary").glob("kmha-*"))
    kinds.finish("classify", tmp_path)
    logger.info("killed while reading: restarted, equal, its temporary folder removed ")
