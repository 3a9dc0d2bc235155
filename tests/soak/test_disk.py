"""Full disks: rejected before training, and no checkpoint is lost when a disk fills up."""

import contextlib
import logging
import resource
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command_runs import news_rows, write_csv
from tests.soak.fits import Fit, fitted, killed_after_a_checkpoint

logger = logging.getLogger("kmha")

pytestmark = pytest.mark.soak


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """A file system of its own, in memory; skips where this process may not mount one."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> Path:
    """Fills a disk to its last page."""
    filler = disk / "filler"
    with open(filler, "wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
    return filler


# More weights than the models of `kinds` have, so that a checkpoint is a few MB.
LARGE = ["--encoder.ngram-buckets=20011"]


def only_line(ended, start: str) -> None:
    """Checks that the process ended with a single error line."""
    lines = [line for line in ended.err.splitlines() if line.startswith(("error", "Traceback", "Exception"))]
    assert lines == [ended.last] and ended.last.startswith(start), ended.err[-3000:]


def test_too_small_a_disk_is_rejected_before_training(kinds, tmp_path):
    with small_disk(tmp_path / "disk", 4) as disk:
        ended = fitted(tmp_path, [*kinds.flags("classify"), *LARGE], "disk/run")
        assert ended.status == 2 and "epoch 1" not in ended.err
        only_line(ended, f"error: {disk}/run.partial/checkpoint: expected ")
        assert "MB of free disk for 2 checkpoints and the next one, got " in ended.last
        assert not list(disk.iterdir())
    logger.info(f"refused before training: {ended.last} ")


def test_disk_that_fills_up_loses_no_checkpoint(kinds, tmp_path):
    reference = kinds.of("classify")
    with small_disk(tmp_path / "disk", 20) as disk:
        with Fit(tmp_path, reference.flags, "disk/run") as fit:
            assert fit.wait_for(lambda: len(fit.checkpoints) == 2), fit.log()[-3000:]
            filler = fill(disk)
            ended = fit.end()
        assert ended.status == 1
        only_line(ended, "error: ")
        assert ended.last.endswith("; run the same command with --resume to continue")
        checkpoints = fit.checkpoints
        assert len(checkpoints) == 2 and not list((fit.partial / "checkpoint").glob("*.partial"))
        # The space of the removed partial checkpoint is filled too, and the next run is rejected at once.
        more = fill(disk)
        again = fitted(tmp_path, reference.flags, "disk/run")
        assert again.status in (1, 2) and fit.checkpoints == checkpoints
        only_line(again, "error: ")
        filler.unlink()
        more.unlink(missing_ok=True)
        kinds.finish("classify", tmp_path, "disk/run")
    logger.info(f"disk full in training: {ended.last}; tried again: {again.last}; with room again: equal ")


def test_a_temporary_folder_without_room_is_named(kinds, tmp_path):
    train = write_csv(tmp_path / "train.csv", news_rows(3000, seed=1) * 20)
    flags = [flag for flag in kinds.flags("classify") if not flag.startswith("--data.train")]
    with small_disk(tmp_path / "disk", 1) as disk:
        ended = fitted(tmp_path, [*flags, f"--data.train={train}"], temporary=disk)
        assert not list(disk.glob("kmha-*"))
    assert ended.status == 2
    only_line(ended, f"error: {disk}: expected ")
    assert not (tmp_path / "run.partial").exists()
    logger.info(f"temporary folder too small: {ended.last} ")


def test_file_size_limit_loses_no_checkpoint(kinds, tmp_path):
    reference = kinds.of("classify")
    killed_after_a_checkpoint(tmp_path, reference.flags)
    partial = tmp_path / "run.partial" / "checkpoint"
    size = max(path.stat().st_size for path in partial.rglob("state.data*"))

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, resource.RLIM_INFINITY))

    with Fit(tmp_path, reference.flags, before=limit) as fit:
        before = fit.checkpoints
        ended = fit.end()
        assert ended.status == 1 and fit.checkpoints == before
    only_line(ended, f"error: cannot write a checkpoint into {partial}, ")
    assert ended.last.endswith("; run the same command with --resume to continue")
    kinds.finish("classify", tmp_path)
    logger.info(f"a limit on the size of files: {ended.last}; without it: equal ")


def test_a_read_only_folder_is_rejected(kinds, tmp_path):
    with small_disk(tmp_path / "disk", 20) as disk:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        ended = fitted(tmp_path, kinds.flags("classify"), "disk/run")
    assert ended.status == 2 and ended.err.count("\n") == 1
    only_line(ended, "error: --out disk/run: cannot write there, Read-only file system")
    logger.info(f"refused at once: {ended.last} ")
