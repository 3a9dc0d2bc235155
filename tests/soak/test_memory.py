"""An hour's worth of steps: memory stays flat and no file stays open."""

import json
import logging

import pytest

from tests.command_runs import NO_DROPOUT, TINY, news_rows, write_csv
from tests.soak.fits import Fit, slope, watched

logger = logging.getLogger("kmha")

pytestmark = pytest.mark.soak

# The default model does about seven steps a second on two cores: 25,200 an hour.
STEPS, ROWS, BATCH_ROWS = 25_200, 1_120, 4
STEPS_PER_EPOCH = 252
GROWTH_MB = 60.0


def test_memory_and_open_files_do_not_grow_in_an_hour_of_steps(tmp_path):
    write_csv(tmp_path / "train.csv", news_rows(ROWS, seed=1))
    tiny = [flag for flag in TINY if not flag.startswith(("--train.epochs", "--train.batch-rows"))]
    epochs = STEPS // STEPS_PER_EPOCH
    flags = [
        *tiny,
        *NO_DROPOUT,
        f"--data.train={tmp_path / 'train.csv'}",
        f"--train.epochs={epochs}",
        f"--train.patience={epochs}",
        f"--train.batch-rows={BATCH_ROWS}",
        "--train.checkpoint-steps=100",
        "--no-baseline",
    ]
    with Fit(tmp_path, flags) as fit:
        assert fit.wait_for(lambda: fit.log().count("\nepoch ") >= 5)
        seen = list(watched(fit))
        ended = fit.end()
    assert ended.status == 0, ended.err[-3000:]
    history = json.loads((tmp_path / "run" / "metrics.json").read_text())["history"]
    assert len(history) == epochs
    # The second half of the training; what comes after it loads other libraries.
    end = len(seen) * 9 // 10
    times, memory, files = (list(column) for column in zip(*seen[end // 2 : end], strict=True))
    growth = slope(times, memory) * (times[-1] - times[0])
    per_hour = growth * (end / (end - end // 2))
    logger.info(
        f"{epochs} epochs of {STEPS_PER_EPOCH} steps and {STEPS // 100} checkpoints in {seen[-1][0]:.0f} s: memory"
        f" {seen[0][1]:.0f} MB after five epochs, {memory[0]:.0f} in the middle, {memory[-1]:.0f} at the end; slope"
        f" {per_hour:+.1f} MB in {STEPS:,} steps; open files {min(files)} to {max(files)} "
    )
    assert per_hour < GROWTH_MB
    assert max(files) - min(files) <= 4 and slope(times, files) * (times[-1] - times[0]) < 1
