"""Files that are damaged or change: each is named, and nothing that can be saved is lost."""

import logging
import shutil
from pathlib import Path

import pytest

from tests.changed_files import flip_bit
from tests.command_runs import news_rows, write_csv
from tests.soak.fits import Fit, fitted, killed_after_a_checkpoint

logger = logging.getLogger("kmha")

pytestmark = pytest.mark.soak


def truncate(checkpoint: Path) -> str:
    (path,) = checkpoint.glob("state.data*")
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size // 2)
    return f"{path.name} has "


def flip(checkpoint: Path) -> str:
    (path,) = checkpoint.glob("state.data*")
    flip_bit(path)
    return "hecksum does not match"


def remove(checkpoint: Path) -> str:
    (checkpoint / "state.index").unlink()
    return "state.index is missing"


def half_json(checkpoint: Path) -> str:
    path = checkpoint / "progress.json"
    path.write_text(path.read_text()[:40])
    return "progress.json is damaged"


@pytest.mark.parametrize("damage", [truncate, flip, remove, half_json])
def test_a_damaged_checkpoint_is_logged_and_the_run_equals_its_reference(kinds, tmp_path, damage):
    flags = kinds.of("classify").flags
    killed_after_a_checkpoint(tmp_path, flags)
    partial = tmp_path / "run.partial"
    newest = max((partial / "checkpoint").glob("*[0-9]"))
    reason = damage(newest)
    log = kinds.finish("classify", tmp_path)
    (line,) = [line for line in log.splitlines() if "damaged" in line]
    assert f"run.partial/checkpoint/{newest.name} is damaged: " in line and reason in line
    logger.info(f"{line}; equal ")


def test_damage_of_all_checkpoints_is_an_error_in_one_line(kinds, tmp_path):
    flags = kinds.of("classify").flags
    killed_after_a_checkpoint(tmp_path, flags)
    checkpoints = tmp_path / "run.partial" / "checkpoint"
    for checkpoint in checkpoints.glob("*[0-9]"):
        truncate(checkpoint)
    ended = fitted(tmp_path, [flag for flag in flags if flag != "--resume-or-begin"] + ["--resume"])
    assert ended.status == 2 and ended.err.count("\n") == 1
    assert ended.err.startswith("error: --resume: expected a valid checkpoint in ")
    # No checkpoint is deleted, even in this case.
    assert len(list(checkpoints.glob("*[0-9]"))) == 2
    logger.info(f"{ended.last} ")


@pytest.mark.parametrize("change", ["grows", "is cut", "is replaced"])
def test_a_data_file_that_changes_while_it_is_read_is_an_error(kinds, tmp_path, change):
    # Large enough to be read for seconds.
    rows = news_rows(3000, seed=1) * 60
    train = write_csv(tmp_path / "train.csv", rows)
    flags = [flag for flag in kinds.flags("classify") if not flag.startswith("--data.train")]
    with Fit(tmp_path, [*flags, f"--data.train={train}"]) as fit:
        assert fit.wait_for(lambda: list((tmp_path / "temporary").glob("kmha-*/train/texts0")))
        if change == "grows":
            with open(train, "a") as file:
                file.write("soup and bread,food\n")
        elif change == "is cut":
            with open(train, "r+b") as file:
                file.truncate(train.stat().st_size - 1000)
        else:
            shutil.copy(train, tmp_path / "new.csv")
            (tmp_path / "new.csv").replace(train)
        ended = fit.end()
    assert ended.status == 2 and ended.err.count("\n") == 1, ended.err[-3000:]
    expected = "expected a file that stays as it is while it is read, got one that has changed meanwhile"
    assert ended.last == f"error: {train}: {expected}"
    assert not (tmp_path / "run.partial").exists()
    logger.info(f"{change}: error: …/train.csv: {expected} ")


def test_a_data_file_that_changes_after_a_kill_is_an_error_on_resume(kinds, tmp_path):
    train = tmp_path / "train.csv"
    shutil.copy(kinds.folder / "train.csv", train)
    flags = [flag for flag in kinds.flags("classify") if not flag.startswith("--data.train")]
    flags = [*flags, f"--data.train={train}"]
    killed_after_a_checkpoint(tmp_path, flags)
    with open(train, "a") as file:
        file.write("soup and bread,food\n")
    ended = fitted(tmp_path, flags)
    assert ended.status == 2 and ended.err.count("\n") == 1, ended.err[-3000:]
    assert "expected the train rows of the interrupted run" in ended.last and "has changed" in ended.last
    assert (tmp_path / "run.partial" / "checkpoint").is_dir()
    logger.info(
        "after a kill: error: --resume: expected the train rows of the interrupted run, …/train.csv has changed "
    )
