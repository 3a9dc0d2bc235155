"""The folder of a run: written beside its place, locked meanwhile, and moved there when all has gone well."""

import contextlib
import dataclasses
import fcntl
import json
import os
import shutil
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tomli_w

from kmha.bundle.manifest import MANIFEST, sha256
from kmha.errors import InputError
from training.cli.config_diff import differences
from training.config.config import FitConfig, settings
from training.io.scratch_folder import remove_left
from training.runs.checkpoint_folder import find_damage, list_checkpoints, newest_valid_checkpoint

CHECKPOINT, RUN_LOG, METRICS, CONFIG = "checkpoint", "epochs.csv", "metrics.json", "config.toml"
REPORT, CARD = "report.html", "report.md"
# What the rows were when the run began; only an unfinished run has it.
SOURCES = "sources.json"
# Settings of one start, not of a run.
START_FLAGS = ("overwrite", "resume", "resume_or_begin")
# They touch neither weights nor scores, so a run may go on with others than it began with.
CHANGEABLE_ON_RESUME = (
    *("out", "baseline", "report", "tensorboard"),
    *("train.checkpoint_steps", "train.checkpoint_minutes", "train.checkpoints_kept"),
)


@contextlib.contextmanager
def run_folder(config: FitConfig) -> Iterator[Path]:
    """The folder to write a run into; it becomes `config.out_folder()` when the block ends well.

    It holds config.toml from the start. When the block fails nothing stays, unless there is a checkpoint.

    Raises:
        InputError: A run, an interrupted run or something else stands there already, --resume finds none or
            one of other settings, another process writes there, or nobody can.
    """
    shown = config.out_folder()
    try:
        final = shown.resolve()
        beside = _unfinished(final)
        _check_place(final, shown, config.overwrite)
        _check_beside(beside, config)
        made = _missing_parents(beside)
        beside.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {shown}: cannot write there, {error.strerror or error}") from error
    with lock_folder(beside, shown):
        try:
            _begin(beside, config)
            yield beside
        except BaseException:
            if not has_checkpoint(beside):
                shutil.rmtree(beside, ignore_errors=True)
                _remove_empty(made)
            raise
        _put_in_place(beside, final)


def can_resume(config: FitConfig) -> bool:
    """Whether an interrupted run of this place can be gone on with."""
    return has_checkpoint(_unfinished(config.out_folder().resolve()))


def resolve_resume(config: FitConfig) -> FitConfig:
    """The settings with --resume where they leave it to what stands there."""
    resume = config.resume or (config.resume_or_begin and can_resume(config))
    return dataclasses.replace(config, resume=resume, resume_or_begin=False)


def has_checkpoint(folder: Path) -> bool:
    """Whether an unfinished run holds a whole checkpoint."""
    return newest_valid_checkpoint(folder / CHECKPOINT) is not None


def check_same_data(folder: Path, sources: dict[str, Any], resume: bool) -> None:
    """Notes what the rows are, or when resuming checks that they are still the same.

    Args:
        folder: The unfinished run.
        sources: JSON values that change when the rows do.
        resume: Whether an interrupted run goes on.

    Raises:
        InputError: They are others than when the run began.
    """
    path = folder / SOURCES
    if resume and path.exists():
        for part, noted in json.loads(path.read_text("utf-8")).items():
            if sources.get(part) != noted:
                raise InputError(
                    f"--resume: expected the {part} rows that the run began with, {noted['name']} has changed;"
                    " start without --resume, with --overwrite"
                )
    path.write_text(json.dumps(sources, ensure_ascii=False), "utf-8")


def _unfinished(final: Path) -> Path:
    return final.parent / f"{final.name}.partial"


def _recorded(config: FitConfig) -> dict[str, Any]:
    """The settings that make the run what it is."""
    return {name: value for name, value in settings(config).items() if name not in START_FLAGS}


def _check_place(final: Path, shown: Path, overwrite: bool) -> None:
    if not final.exists():
        return
    if (final / MANIFEST).exists():
        if not overwrite:
            raise InputError(
                f"--out {shown}: expected a new folder, got one that holds another run; use --overwrite"
            )
    elif not final.is_dir() or any(final.iterdir()):
        what = "a folder that holds something else than a run" if final.is_dir() else "a file"
        raise InputError(f"--out {shown}: expected a new folder, got {what}")


def _check_beside(beside: Path, config: FitConfig) -> None:
    """Refuses to lose what stands in the place of the unfinished run, or to go on with the wrong one."""
    if config.resume:
        damaged = [f"{path.name}: {find_damage(path)}" for path in list_checkpoints(beside / CHECKPOINT)]
        if (beside / CONFIG).exists() and damaged and not has_checkpoint(beside):
            raise InputError(
                f"--resume: expected a whole checkpoint in {beside / CHECKPOINT}, got {', '.join(damaged)};"
                " --overwrite starts anew"
            )
        if not (beside / CONFIG).exists() or not damaged:
            raise InputError(f"--resume: expected an interrupted run in {beside}, got none")
        began = tomllib.loads((beside / CONFIG).read_text("utf-8"))
        now = tomllib.loads(tomli_w.dumps(_recorded(config)))
        if found := differences(began, now, CHANGEABLE_ON_RESUME):
            raise InputError(f"--resume: expected the settings that the run began with, {found}")
    elif has_checkpoint(beside) and not config.overwrite:
        raise InputError(
            f"--out {config.out_folder()}: an interrupted run stands in {beside};"
            " --resume goes on with it, --overwrite starts anew"
        )
    elif (
        beside.exists() and (not beside.is_dir() or any(beside.iterdir())) and not (beside / CONFIG).exists()
    ):
        raise InputError(
            f"--out {config.out_folder()}: expected {beside} for the unfinished run, it is taken"
        )


@contextlib.contextmanager
def lock_folder(folder: Path, shown: Path, what: str = "fit") -> Iterator[None]:
    """Keeps a second command from writing into the same folder; the lock ends with the process at the latest.

    Args:
        folder: Exists.
        shown: How the user named the place.
        what: What the command is called.

    Raises:
        InputError: Another one writes there.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise InputError(
            f"--out {shown}: expected a folder of its own, another {what} is writing there"
        ) from None
    try:
        yield
    finally:
        os.close(handle)


def _begin(beside: Path, config: FitConfig) -> None:
    """Makes the unfinished run hold the settings, and when nothing is gone on with nothing else."""
    try:
        remove_left(beside)
        if not config.resume:
            _clear(beside)
        written = beside / f"{CONFIG}.new"
        written.write_text(tomli_w.dumps(_recorded(config)), "utf-8")
        written.replace(beside / CONFIG)
    except OSError as error:
        raise InputError(
            f"--out {config.out_folder()}: cannot write there, {error.strerror or error}"
        ) from error


def _clear(folder: Path) -> None:
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _missing_parents(path: Path) -> list[Path]:
    """The folders above a path that do not exist, deepest first."""
    return [parent for parent in path.parents if not parent.exists()]


def _remove_empty(folders: list[Path]) -> None:
    with contextlib.suppress(OSError):
        for folder in folders:
            folder.rmdir()


def _put_in_place(beside: Path, final: Path) -> None:
    """Moves the finished run to its place; what stood there goes only when the new run stands."""
    if final.exists():
        replace_folder(beside, final)
    else:
        beside.rename(final)
    # Only now: a kill before the move must find what it needs to go on.
    shutil.rmtree(final / CHECKPOINT, ignore_errors=True)
    (final / SOURCES).unlink(missing_ok=True)


def replace_folder(new: Path, final: Path) -> None:
    """Moves a whole folder to where another one stands, which goes only when the new one is there."""
    with tempfile.TemporaryDirectory(prefix=f".{final.name}.", dir=final.parent) as aside:
        before = final.rename(Path(aside) / final.name)
        try:
            new.rename(final)
        except BaseException:
            before.rename(final)
            raise


def replace_bundle(folder: Path, bundle: Any) -> None:
    """Puts a bundle in the place of that of a run; what else the folder holds stays.

    Args:
        folder: Of the run.
        bundle: A trained bundle.

    Raises:
        InputError: Nobody can write there.
    """
    final = folder.resolve()
    try:
        with tempfile.TemporaryDirectory(prefix=f".{final.name}.", dir=final.parent) as aside:
            new = Path(shutil.copytree(final, Path(aside) / final.name))
            bundle.save(new)
            replace_folder(new, final)
    except OSError as error:
        raise InputError(f"{folder}: cannot write there, {error.strerror or error}") from error


def identify_rows(manifest: dict[str, Any], data: Path) -> tuple[str, dict[str, Any]]:
    """What rows are called, as by the fit or else as their file, and where all rows of the run come from.

    Args:
        manifest: bundle.json of the run.
        data: The file.

    Returns:
        The name, and by name {"name", "sha256"}, with these rows.

    Raises:
        InputError: The run has trained on them.
    """
    kept = manifest.get("data")
    kept = kept if isinstance(kept, dict) else {}
    origins = {part: each for part, each in kept.items() if isinstance(each, dict)}
    found = sha256(data)
    same = [part for part, each in origins.items() if each.get("sha256") == found]
    if "train" in same:
        raise InputError(
            f"--data {data}: expected rows that the run has not trained on, got its training rows"
        )
    if same:
        return same[0], origins
    return data.name, origins | {data.name: {"name": str(data), "sha256": found}}
