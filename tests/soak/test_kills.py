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
KINDS = (
    "classify",
    "accumulated",
    "float16",
    "tag",
    "match",
    "masked-lm",
    "distilled",
    "started",
    "few-labels",
)
# The same seed gives the same delays; the state of the process at that time still varies.
SEED = int(os.environ.get("SOAK_SEED", time.time_ns() % 10**6))


@pytest.mark.parametrize("number", range(KILLS))
def test_a_run_killed_at_a_random_moment_resumes_and_equals_its_reference(kinds, tmp_path, number):
    kind = KINDS[number % len(KINDS)]
    reference = kinds.of(kind)
    share = random.Random(SEED + number).random()
    while True:
        with Fit(tmp_path, reference.flags) as fit:
            assert fit.wait_for(lambda: fit.checkpoints), fit.log()[-3000:]
            time.sleep(share * reference.seconds)
            fit.send(signal.SIGKILL)
            fit.end()
        if fit.partial.exists():
            break
        # The run ended before the kill: start a new run and kill it earlier.
        share *= 0.7
        os.rename(tmp_path / "run", tmp_path / f"over-{share}")
    training_progress = progress(tmp_path)
    writing = any((tmp_path / "run.partial" / "checkpoint").glob("*.partial"))
    if kind == "few-labels":
        position = f"training {training_progress['training'] + 1}, step {training_progress['steps']}"
    else:
        position = f"epoch {len(training_progress['history']) + 1}, batch {training_progress['batch']}"
    last = fit.log().splitlines()[-1]
    log = kinds.finish(kind, tmp_path)
    assert "damaged" not in log
    logger.info(
        f"{number + 1} of {KILLS} equal, seed {SEED}: {kind}, {share * reference.seconds:.2f} s after its first"
        f" checkpoint, resumed from {position}"
        f"{', while a checkpoint was being written' if writing else ''}; it had said: {last[:40]!r} "
    )


def test_a_run_killed_before_its_first_checkpoint_starts_over(kinds, tmp_path):
    reference = kinds.of("classify")
    with Fit(tmp_path, reference.flags) as fit:
        assert fit.wait_for(lambda: (fit.partial / "scratch.txt").exists())
        fit.send(signal.SIGKILL)
        assert fit.end().status == -signal.SIGKILL
    # The next start removes its temporary folder.
    assert list((tmp_path / "temporary").glob("kmha-*"))
    kinds.finish("classify", tmp_path)
    logger.info("killed while reading: restarted, equal, its temporary folder removed ")
