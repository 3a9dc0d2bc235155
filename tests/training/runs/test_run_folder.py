import contextlib
import errno
import os
import signal
import tempfile
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from kmha.bundle.manifest import MANIFEST
from kmha.errors import InputError
from training.cli.parser import run
from training.config.config import FitConfig, TrainSection
from training.io.disk import scratch_folder
from training.runs import run_folder as module
from training.runs.checkpoint_folder import PROGRESS, write_progress
from training.runs.run_folder import (
    CHECKPOINT,
    CONFIG,
    can_resume,
    check_same_data,
    resolve_resume,
    run_folder,
)
from training.runtime.resource_usage import Cost


def config_for(tmp_path: Path, **values) -> FitConfig:
    return FitConfig(out=tmp_path / "runs" / "a", **values)


def finish(config: FitConfig, text: str = "new") -> None:
    with run_folder(config) as folder:
        (folder / MANIFEST).write_text(text)


def interrupt(config: FitConfig) -> None:
    """Leaves a run as SIGTERM would: with a checkpoint."""
    with pytest.raises(KeyboardInterrupt), run_folder(config) as folder:
        (folder / CHECKPOINT / "00000001").mkdir(parents=True)
        write_progress(folder / CHECKPOINT / "00000001", {})
        raise KeyboardInterrupt


def everything(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_incomplete_checkpoint_is_not_a_checkpoint(tmp_path):
    with pytest.raises(KeyboardInterrupt), run_folder(config_for(tmp_path)) as folder:
        (folder / CHECKPOINT / "00000001.partial").mkdir(parents=True)
        (folder / CHECKPOINT / "00000001.partial" / "state.index").touch()
        raise KeyboardInterrupt
    assert everything(tmp_path) == []


def test_finished_run_is_renamed(tmp_path):
    config = config_for(tmp_path)
    with run_folder(config) as folder:
        assert everything(tmp_path) == ["runs", "runs/a.partial", f"runs/a.partial/{CONFIG}"]
        (folder / MANIFEST).touch()
        (folder / CHECKPOINT).mkdir()
        check_same_data(folder, {"train": {"name": "x", "sha256": "1"}}, resume=False)
    assert everything(tmp_path) == ["runs", "runs/a", f"runs/a/{MANIFEST}", f"runs/a/{CONFIG}"]


def test_failed_run_leaves_nothing(tmp_path):
    with pytest.raises(ZeroDivisionError), run_folder(config_for(tmp_path)) as folder:
        (folder / "half").write_text("written")
        raise ZeroDivisionError
    assert everything(tmp_path) == []


def test_existing_run_is_replaced_only_with_overwrite_and_after_success(tmp_path):
    finish(config_for(tmp_path), "first")
    with pytest.raises(InputError, match="got a folder with a run; use --overwrite to replace it"):
        finish(config_for(tmp_path))
    with pytest.raises(ZeroDivisionError), run_folder(config_for(tmp_path, overwrite=True)):
        raise ZeroDivisionError
    bundle = tmp_path / "runs" / "a" / MANIFEST
    assert bundle.read_text() == "first"
    finish(config_for(tmp_path, overwrite=True), "second")
    assert bundle.read_text() == "second"
    assert everything(tmp_path / "runs") == ["a", f"a/{MANIFEST}", f"a/{CONFIG}"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_other_files_are_never_replaced(tmp_path, overwrite):
    config = config_for(tmp_path, overwrite=overwrite)
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "thesis.txt").touch()
    with pytest.raises(InputError, match="got a folder with files that are not a run$"):
        finish(config)
    with pytest.raises(InputError, match="got a file$"):
        finish(replace(config, out=tmp_path / "runs" / "a" / "thesis.txt"))
    with pytest.raises(InputError, match="cannot write there"):
        finish(replace(config, out=tmp_path / "runs" / "a" / "thesis.txt" / "b"))
    with pytest.raises(InputError, match="got a folder with files"):
        finish(replace(config, out=Path("/")))
    assert everything(tmp_path / "runs") == ["a", "a/thesis.txt"]


def test_other_files_at_the_unfinished_path_are_not_removed(tmp_path):
    taken = tmp_path / "runs" / "a.partial" / "thesis.txt"
    taken.parent.mkdir(parents=True)
    taken.touch()
    with pytest.raises(InputError, match="it exists"):
        finish(config_for(tmp_path, overwrite=True))
    assert taken.exists()


def test_empty_folder_and_link_to_a_run_are_accepted(tmp_path):
    (tmp_path / "runs" / "a").mkdir(parents=True)
    finish(config_for(tmp_path), "first")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "runs" / "a")
    finish(FitConfig(out=link, overwrite=True), "second")
    assert link.is_symlink() and (link / MANIFEST).read_text() == "second"


def test_interrupted_run_is_resumed_with_its_settings_only(tmp_path):
    config = config_for(tmp_path)
    with pytest.raises(InputError, match="--resume: expected an interrupted run in .*a.partial, got none"):
        finish(replace(config, resume=True))
    assert everything(tmp_path) == []
    interrupt(config)
    assert can_resume(config)
    with pytest.raises(InputError, match="--train.epochs 0, got 3$"):
        finish(replace(config, resume=True, train=TrainSection(epochs=3)))
    others = replace(config, resume=True, calibrate=False, train=TrainSection(epochs=3, seed=5))
    with pytest.raises(InputError) as caught:
        finish(others)
    assert str(caught.value) == (
        "--resume: expected the settings of the interrupted run, --calibrate True, got False;"
        " --train.epochs 0, got 3; --train.seed 0, got 5"
    )
    with pytest.raises(InputError, match="--encoder.head-dim unset, got 8$"):
        finish(replace(config, resume=True, encoder=replace(config.encoder, head_dim=8)))
    finish(replace(config, resume=True))
    assert not can_resume(config)
    assert everything(tmp_path / "runs") == ["a", f"a/{MANIFEST}", f"a/{CONFIG}"]


def test_interrupted_run_is_not_replaced_without_a_flag(tmp_path):
    config = config_for(tmp_path)
    interrupt(config)
    with pytest.raises(InputError, match="use --resume to continue it or --overwrite to start over"):
        finish(config)
    assert can_resume(config)
    finish(replace(config, overwrite=True))
    assert not can_resume(config)


def test_run_killed_before_its_first_checkpoint_is_replaced(tmp_path):
    config = config_for(tmp_path)
    (tmp_path / "runs" / "a.partial").mkdir(parents=True)
    (tmp_path / "runs" / "a.partial" / CONFIG).touch()
    (tmp_path / "runs" / "a.partial" / "epochs.csv").touch()
    finish(config)
    assert everything(tmp_path / "runs") == ["a", f"a/{MANIFEST}", f"a/{CONFIG}"]


def test_second_fit_in_one_folder_is_refused(tmp_path):
    config = config_for(tmp_path)
    with run_folder(config) as folder:
        with pytest.raises(InputError, match="another fit is writing there"):
            finish(replace(config, overwrite=True))
        assert (folder / CONFIG).exists()
        (folder / MANIFEST).touch()


def test_changed_rows_are_not_resumed(tmp_path):
    check_same_data(tmp_path, {"train": {"name": "a.csv", "sha256": "1"}}, resume=False)
    check_same_data(tmp_path, {"train": {"name": "a.csv", "sha256": "1"}}, resume=True)
    with pytest.raises(
        InputError, match="--resume: expected the train rows of the interrupted run, a.csv has"
    ):
        check_same_data(tmp_path, {"train": {"name": "a.csv", "sha256": "2"}}, resume=True)


def test_settings_without_effect_on_weights_may_differ(tmp_path, monkeypatch):
    config = config_for(tmp_path)
    interrupt(config)
    monkeypatch.chdir(tmp_path)
    train = TrainSection(checkpoint_steps=7, checkpoint_minutes=1.0, checkpoints_kept=3)
    other = FitConfig(
        out=Path("runs/a"), resume=True, baseline=False, report=False, tensorboard=True, train=train
    )
    finish(other)
    # A run records the settings that it ended with.
    assert tomllib.loads((tmp_path / "runs" / "a" / CONFIG).read_text())["train"]["checkpoint_steps"] == 7


def test_damaged_checkpoints_are_not_resumed_and_not_removed(tmp_path):
    config = config_for(tmp_path)
    interrupt(config)
    partial = tmp_path / "runs" / "a.partial"
    (partial / CHECKPOINT / "00000001" / PROGRESS).write_text("{")
    before = everything(tmp_path)
    with pytest.raises(
        InputError, match="got 00000001: progress.json is damaged; use --overwrite to start over$"
    ):
        finish(replace(config, resume=True))
    assert everything(tmp_path) == before


def test_resume_or_begin_does_both(tmp_path):
    config = config_for(tmp_path, resume_or_begin=True)
    assert not resolve_resume(config).resume
    interrupt(resolve_resume(config))
    assert resolve_resume(config).resume
    finish(resolve_resume(config))
    # A finished run is neither resumed nor replaced.
    with pytest.raises(InputError, match="got a folder with a run"):
        finish(resolve_resume(config))


def test_next_start_removes_temporary_files_of_a_killed_run(tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    config = config_for(tmp_path)
    with pytest.raises(KeyboardInterrupt), run_folder(config) as folder, scratch_folder(folder) as scratch:
        # A killed process cannot clean up.
        left = scratch.with_name("kmha-left")
        left.mkdir()
        (folder / "00").touch()
        note = folder / module.CHECKPOINT / "00000001"
        note.mkdir(parents=True)
        write_progress(note, {})
        raise KeyboardInterrupt
    (tmp_path / "runs" / "a.partial" / "scratch.txt").write_text(str(left))
    finish(replace(config, resume=True))
    assert list((tmp_path / "temporary").iterdir()) == []


def test_kill_while_a_finished_run_is_renamed_loses_nothing(tmp_path, monkeypatch):
    config = config_for(tmp_path)

    def killed(self, target):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), run_folder(config) as folder:
        (folder / CHECKPOINT / "00000001").mkdir(parents=True)
        write_progress(folder / CHECKPOINT / "00000001", {})
        (folder / MANIFEST).touch()
        monkeypatch.setattr(Path, "rename", killed)
    assert can_resume(config)


def test_read_only_folder_is_refused_before_reading(tmp_path, monkeypatch):
    def refuse(self, *_, **__):
        raise OSError(errno.EROFS, "Read-only file system", str(self))

    monkeypatch.setattr(Path, "write_text", refuse)
    with pytest.raises(InputError, match="--out .*/runs/a: cannot write there, Read-only file system"):
        finish(config_for(tmp_path))


def test_a_run_whose_stop_signal_a_library_discarded_is_not_published(tmp_path):
    settings = config_for(tmp_path)

    def fit():
        with run_folder(settings):
            with contextlib.suppress(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGTERM)
            with pytest.raises(KeyboardInterrupt), Cost().measure("training"):
                pytest.fail("went on")
        return 0

    assert run(fit) == 130 and everything(tmp_path) == []
