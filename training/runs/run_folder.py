"""The run folder: written as FOLDER.partial under a lock, and renamed to FOLDER when the run is complete."""

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
from kmha.errors import InputError, format_names
from kmha.input_files import read_json
from training.cli.exceptions import check_stop, delayed_stop
from training.cli.parser import read_toml
from training.config.config import FitConfig, ResolvedConfig, differences, settings
from training.distributed.coordinator import SINGLE_WORKER, Coordinator
from training.io.disk import remove_left
from training.runs.checkpoint_folder import find_damage, list_checkpoints, newest_valid_checkpoint
from training.runtime.resource_usage import Cost

CHECKPOINT, RUN_LOG, METRICS, CONFIG = "checkpoint", "epochs.csv", "metrics.json", "config.toml"
REPORT, CARD = "report.html", "report.md"
# Names and digests of the input rows; only an unfinished run has this file.
SOURCES = "sources.json"
# In it: a digest of the held-out rows, if near copies are held out together.
HELD_OUT = "held-out"
# Settings of one start of the command, which are not recorded.
START_FLAGS = ("overwrite", "resume", "resume_or_begin", "json")
# Settings without effect on weights and scores, which may change when a run is resumed.
CHANGEABLE_ON_RESUME = (
    *("out", "baseline", "report", "mask_texts", "tensorboard"),
    *("train.checkpoint_steps", "train.checkpoint_minutes", "train.checkpoints_kept"),
)


@dataclasses.dataclass
class RunContext:
    """Shared state of the steps of a run."""

    config: ResolvedConfig
    folder: Path  # the unfinished run folder, for the checkpoint and logs
    scratch: Path  # for rows and token ids
    coordinator: Coordinator = SINGLE_WORKER
    cost: Cost = dataclasses.field(default_factory=Cost)


@contextlib.contextmanager
def run_folder(config: FitConfig) -> Iterator[Path]:
    """The unfinished folder of a run; it is renamed to `config.out_folder()` when the block succeeds.

    It has config.toml from the start. If the block fails, it is removed unless it has a checkpoint. Raises InputError
    if the folder exists, is locked or not writable, or --resume finds no run or one of other settings.
    """
    shown = config.out_folder()
    try:
        final = shown.resolve()
        unfinished = _unfinished(final)
        _check_final(final, shown, config.overwrite)
        _check_unfinished(unfinished, config)
        new_parents = [parent for parent in unfinished.parents if not parent.exists()]
        unfinished.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {shown}: cannot write there, {error.strerror or error}") from error
    with lock_folder(unfinished, shown):
        try:
            _prepare(unfinished, config)
            yield unfinished
            check_stop()
        except BaseException:
            if not has_checkpoint(unfinished):
                shutil.rmtree(unfinished, ignore_errors=True)
                with contextlib.suppress(OSError):
                    for folder in new_parents:
                        folder.rmdir()
            raise
        with delayed_stop():
            _finish(unfinished, final)


def can_resume(config: FitConfig) -> bool:
    """Whether there is an interrupted run to resume."""
    return has_checkpoint(_unfinished(config.out_folder().resolve()))


def resolve_resume(config: FitConfig) -> FitConfig:
    """The settings with --resume-or-begin replaced by --resume if there is a run to resume."""
    resume = config.resume or (config.resume_or_begin and can_resume(config))
    return dataclasses.replace(config, resume=resume, resume_or_begin=False)


def has_checkpoint(folder: Path) -> bool:
    """Whether an unfinished run has a valid checkpoint."""
    return newest_valid_checkpoint(folder / CHECKPOINT) is not None


def check_same_data(folder: Path, sources: dict[str, Any], resume: bool) -> None:
    """Records the input rows; raises InputError if a resumed run had others."""
    path = folder / SOURCES
    if resume and path.exists():
        recorded = read_json(path)
        for part, source in recorded.items():
            if part != HELD_OUT and sources.get(part) != source:
                name = source.get("name") if isinstance(source, dict) else path
                raise InputError(
                    f"--resume: expected the {part} rows of the interrupted run, {name} has changed;"
                    " use --overwrite in place of --resume to start over"
                )
        if recorded.get(HELD_OUT) != sources.get(HELD_OUT):
            raise InputError(
                "--resume: expected the validation rows of the interrupted run, got others: another version of kmha"
                " began the run; use --overwrite in place of --resume to start over"
            )
    path.write_text(json.dumps(sources, ensure_ascii=False, allow_nan=False), "utf-8")


def _unfinished(final: Path) -> Path:
    return final.parent / f"{final.name}.partial"


def _recorded(config: FitConfig) -> dict[str, Any]:
    """The settings that config.toml records."""
    return {name: value for name, value in settings(config).items() if name not in START_FLAGS}


def _check_final(final: Path, shown: Path, overwrite: bool) -> None:
    """Checks that the folder is new, empty, or a run to overwrite."""
    if not final.exists():
        return
    if (final / MANIFEST).exists():
        if not overwrite:
            raise InputError(
                f"--out {shown}: expected a new folder, got a folder with a run; use --overwrite to replace it"
            )
    elif not final.is_dir() or any(final.iterdir()):
        what = "a folder with files that are not a run" if final.is_dir() else "a file"
        raise InputError(f"--out {shown}: expected a new folder, got {what}")


def _check_unfinished(unfinished: Path, config: FitConfig) -> None:
    """Checks that the unfinished folder is the run to resume, or that it can be replaced."""
    if config.resume:
        damaged = [f"{path.name}: {find_damage(path)}" for path in list_checkpoints(unfinished / CHECKPOINT)]
        if (unfinished / CONFIG).exists() and damaged and not has_checkpoint(unfinished):
            raise InputError(
                f"--resume: expected a valid checkpoint in {unfinished / CHECKPOINT}, got {format_names(damaged)};"
                " use --overwrite to start over"
            )
        if not (unfinished / CONFIG).exists() or not damaged:
            raise InputError(f"--resume: expected an interrupted run in {unfinished}, got none")
        before = read_toml(unfinished / CONFIG)
        now = tomllib.loads(tomli_w.dumps(_recorded(config)))
        if found := differences(before, now, CHANGEABLE_ON_RESUME):
            raise InputError(f"--resume: expected the settings of the interrupted run, {found}")
    elif has_checkpoint(unfinished) and not config.overwrite:
        raise InputError(
            f"--out {config.out_folder()}: expected no interrupted run, got one in {unfinished};"
            " use --resume to continue it or --overwrite to start over"
        )
    elif (
        unfinished.exists()
        and (not unfinished.is_dir() or any(unfinished.iterdir()))
        and not (unfinished / CONFIG).exists()
    ):
        raise InputError(
            f"--out {config.out_folder()}: expected {unfinished} to be free for the unfinished run, it exists"
        )


@contextlib.contextmanager
def lock_folder(folder: Path, shown: Path, what: str = "fit") -> Iterator[None]:
    """Locks a folder until the process ends at the latest. Raises InputError if another process has locked it."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise InputError(
            f"--out {shown}: expected an unused folder, another {what} is writing there"
        ) from None
    try:
        yield
    finally:
        os.close(handle)


def _prepare(unfinished: Path, config: FitConfig) -> None:
    """Writes the settings into the unfinished folder, and empties it first unless the run is resumed."""
    try:
        remove_left(unfinished)
        if not config.resume:
            for path in unfinished.iterdir():
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        written = unfinished / f"{CONFIG}.new"
        written.write_text(tomli_w.dumps(_recorded(config)), "utf-8")
        written.replace(unfinished / CONFIG)
    except OSError as error:
        raise InputError(
            f"--out {config.out_folder()}: cannot write there, {error.strerror or error}"
        ) from error


def _finish(unfinished: Path, final: Path) -> None:
    if final.exists():
        replace_folder(unfinished, final)
    else:
        unfinished.rename(final)
    # After the renaming: a run that is killed before can still be resumed.
    shutil.rmtree(final / CHECKPOINT, ignore_errors=True)
    (final / SOURCES).unlink(missing_ok=True)


def replace_folder(new: Path, final: Path) -> None:
    """Moves a folder to the path of another one, which is removed only after the move."""
    with tempfile.TemporaryDirectory(prefix=f".{final.name}.", dir=final.parent) as aside:
        old = final.rename(Path(aside) / final.name)
        try:
            new.rename(final)
        except BaseException:
            old.rename(final)
            raise


def replace_bundle(folder: Path, bundle: Any) -> None:
    """Replaces the bundle in a run folder; the other files stay. Raises InputError if it is not writable."""
    final = folder.resolve()
    try:
        with tempfile.TemporaryDirectory(prefix=f".{final.name}.", dir=final.parent) as aside:
            new = Path(shutil.copytree(final, Path(aside) / final.name))
            bundle.save(new)
            replace_folder(new, final)
    except OSError as error:
        raise InputError(f"{folder}: cannot write there, {error.strerror or error}") from error


def identify_rows(manifest: dict[str, Any], data: Path) -> tuple[str, dict[str, Any]]:
    """Finds out whether a file is a part of the run's data; raises InputError if the run was trained on it.

    Returns the name of the part, or the name of the file if it is no part; and {name: {"name", "sha256"}} of all rows
    of the run, including this file.
    """
    recorded = manifest.get("data")
    recorded = recorded if isinstance(recorded, dict) else {}
    origins = {part: each for part, each in recorded.items() if isinstance(each, dict)}
    digest = sha256(data)
    same = [part for part, each in origins.items() if each.get("sha256") == digest]
    if "train" in same:
        raise InputError(
            f"--data {data}: expected rows that the run was not trained on, got its training rows"
        )
    if same:
        return same[0], origins
    return data.name, origins | {data.name: {"name": str(data), "sha256": digest}}
