from dataclasses import replace
from pathlib import Path

import pytest

import training.checkpoint
from kmha.errors import InputError
from kmha.manifest import MANIFEST
from training import run_folder as module
from training.config import FitConfig, TrainSection
from training.run_folder import CHECKPOINT, CONFIG, check_same_data, kept_for_resume, run_folder


def config_for(tmp_path: Path, **values) -> FitConfig:
    return FitConfig(out=tmp_path / "runs" / "a", **values)


def finish(config: FitConfig, text: str = "new") -> None:
    with run_folder(config) as folder:
        (folder / MANIFEST).write_text(text)


def interrupt(config: FitConfig) -> None:
    """Leaves a run as SIGTERM would: with a checkpoint."""
    with pytest.raises(KeyboardInterrupt), run_folder(config) as folder:
        (folder / CHECKPOINT).mkdir()
        (folder / CHECKPOINT / module.PROGRESS).touch()
        raise KeyboardInterrupt


def everything(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_the_name_of_the_progress_file_is_its_writers():
    assert module.PROGRESS == training.checkpoint.PROGRESS


def test_a_checkpoint_cut_short_is_none(tmp_path):
    with pytest.raises(KeyboardInterrupt), run_folder(config_for(tmp_path)) as folder:
        (folder / CHECKPOINT).mkdir()
        (folder / CHECKPOINT / "state-0.index").touch()
        raise KeyboardInterrupt
    assert everything(tmp_path) == []


def test_a_finished_run_takes_its_place(tmp_path):
    config = config_for(tmp_path)
    with run_folder(config) as folder:
        assert everything(tmp_path) == ["runs", "runs/a.partial", f"runs/a.partial/{CONFIG}"]
        (folder / MANIFEST).touch()
        (folder / CHECKPOINT).mkdir()
        check_same_data(folder, {"train": {"name": "x", "sha256": "1"}}, resume=False)
    assert everything(tmp_path) == ["runs", "runs/a", f"runs/a/{MANIFEST}", f"runs/a/{CONFIG}"]


def test_a_failed_run_leaves_nothing(tmp_path):
    with pytest.raises(ZeroDivisionError), run_folder(config_for(tmp_path)) as folder:
        (folder / "half").write_text("written")
        raise ZeroDivisionError
    assert everything(tmp_path) == []


def test_another_run_is_replaced_only_when_asked_and_only_when_the_new_one_stands(tmp_path):
    finish(config_for(tmp_path), "first")
    with pytest.raises(InputError, match="given one that holds another run; use --overwrite"):
        finish(config_for(tmp_path))
    with pytest.raises(ZeroDivisionError), run_folder(config_for(tmp_path, overwrite=True)):
        raise ZeroDivisionError
    bundle = tmp_path / "runs" / "a" / MANIFEST
    assert bundle.read_text() == "first"
    finish(config_for(tmp_path, overwrite=True), "second")
    assert bundle.read_text() == "second"
    assert everything(tmp_path / "runs") == ["a", f"a/{MANIFEST}", f"a/{CONFIG}"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_is_no_run_is_never_replaced(tmp_path, overwrite):
    config = config_for(tmp_path, overwrite=overwrite)
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "thesis.txt").touch()
    with pytest.raises(InputError, match="given a folder that holds something else than a run$"):
        finish(config)
    with pytest.raises(InputError, match="given a file$"):
        finish(replace(config, out=tmp_path / "runs" / "a" / "thesis.txt"))
    with pytest.raises(InputError, match="cannot write there"):
        finish(replace(config, out=tmp_path / "runs" / "a" / "thesis.txt" / "b"))
    with pytest.raises(InputError, match="given a folder that holds something else"):
        finish(replace(config, out=Path("/")))
    assert everything(tmp_path / "runs") == ["a", "a/thesis.txt"]


def test_the_place_of_the_unfinished_run_is_not_cleared_of_other_things(tmp_path):
    taken = tmp_path / "runs" / "a.partial" / "thesis.txt"
    taken.parent.mkdir(parents=True)
    taken.touch()
    with pytest.raises(InputError, match="it is taken"):
        finish(config_for(tmp_path, overwrite=True))
    assert taken.exists()


def test_an_empty_folder_and_a_link_to_a_run_are_fine(tmp_path):
    (tmp_path / "runs" / "a").mkdir(parents=True)
    finish(config_for(tmp_path), "first")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "runs" / "a")
    finish(FitConfig(out=link, overwrite=True), "second")
    assert link.is_symlink() and (link / MANIFEST).read_text() == "second"


def test_an_interrupted_run_is_gone_on_with_under_its_settings_only(tmp_path):
    config = config_for(tmp_path)
    with pytest.raises(InputError, match="--resume: wanted an interrupted run in .*a.partial, given none"):
        finish(replace(config, resume=True))
    assert everything(tmp_path) == []
    interrupt(config)
    assert kept_for_resume(config)
    with pytest.raises(InputError, match="--train.epochs 0, given 3$"):
        finish(replace(config, resume=True, train=TrainSection(epochs=3)))
    with pytest.raises(InputError, match="--encoder.head-dim unset, given 8$"):
        finish(replace(config, resume=True, encoder=replace(config.encoder, head_dim=8)))
    finish(replace(config, resume=True))
    assert not kept_for_resume(config)
    assert everything(tmp_path / "runs") == ["a", f"a/{MANIFEST}", f"a/{CONFIG}"]


def test_an_interrupted_run_is_not_lost_by_forgetting_to_resume(tmp_path):
    config = config_for(tmp_path)
    interrupt(config)
    with pytest.raises(InputError, match="--resume goes on with it, --overwrite starts anew"):
        finish(config)
    assert kept_for_resume(config)
    finish(replace(config, overwrite=True))
    assert not kept_for_resume(config)


def test_a_run_killed_before_its_first_checkpoint_is_in_nobodys_way(tmp_path):
    config = config_for(tmp_path)
    (tmp_path / "runs" / "a.partial").mkdir(parents=True)
    (tmp_path / "runs" / "a.partial" / CONFIG).touch()
    (tmp_path / "runs" / "a.partial" / "epochs.csv").touch()
    finish(config)
    assert everything(tmp_path / "runs") == ["a", f"a/{MANIFEST}", f"a/{CONFIG}"]


def test_two_fits_do_not_write_into_one_folder(tmp_path):
    config = config_for(tmp_path)
    with run_folder(config) as folder:
        with pytest.raises(InputError, match="another fit is writing there"):
            finish(replace(config, overwrite=True))
        assert (folder / CONFIG).exists()
        (folder / MANIFEST).touch()


def test_other_rows_are_not_resumed_with(tmp_path):
    check_same_data(tmp_path, {"train": {"name": "a.csv", "sha256": "1"}}, resume=False)
    check_same_data(tmp_path, {"train": {"name": "a.csv", "sha256": "1"}}, resume=True)
    with pytest.raises(
        InputError, match="--resume: wanted the train rows that the run began with, a.csv has"
    ):
        check_same_data(tmp_path, {"train": {"name": "a.csv", "sha256": "2"}}, resume=True)
