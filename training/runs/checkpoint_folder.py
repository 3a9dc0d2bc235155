"""The checkpoints of a run that stand in a folder: which of them are whole, which may go, and room for more.

Each is a folder with a number for its name, written beside its place and renamed: one that stands there was whole once.
Apart from `training.runs.checkpoint_io`, so that asking does not import TensorFlow.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from kmha.errors import InputError

PROGRESS = "progress.json"
UNFINISHED = ".partial"
_FILES, _PROGRESS = "files", "progress"


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a folder, whole or not, the newest first."""
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if path.name.isdigit() and path.is_dir()]
    return sorted(found, key=lambda path: int(path.name), reverse=True)


def find_damage(checkpoint: Path) -> str:
    """What is wrong with a checkpoint, as far as names and sizes of its files tell; empty: nothing."""
    try:
        written = json.loads((checkpoint / PROGRESS).read_text("utf-8"))
        if not isinstance(written[_PROGRESS], dict):
            raise ValueError
        for name, expected in written[_FILES].items():
            path = checkpoint / name
            if not path.is_file():
                return f"{name} is missing"
            if path.stat().st_size != expected:
                return f"{name} has {path.stat().st_size:,} of {expected:,} bytes"
    except FileNotFoundError:
        return f"{PROGRESS} is missing"
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return f"{PROGRESS} is damaged"
    return ""


def valid_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a folder without a fault, the newest first."""
    return [checkpoint for checkpoint in list_checkpoints(folder) if not find_damage(checkpoint)]


def newest_valid_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint in a folder without a fault; None: there is none."""
    return next(iter(valid_checkpoints(folder)), None)


def write_progress(checkpoint: Path, progress: dict[str, Any]) -> None:
    """Writes beside the other files of a checkpoint how far its run had come, JSON values, and how large they are."""
    sizes = {path.name: path.stat().st_size for path in checkpoint.iterdir()}
    (checkpoint / PROGRESS).write_text(json.dumps({_FILES: sizes, _PROGRESS: progress}), "utf-8")


def read_progress(checkpoint: Path) -> dict[str, Any]:
    """How far the run of a checkpoint without fault had come."""
    return json.loads((checkpoint / PROGRESS).read_text("utf-8"))[_PROGRESS]


def next_checkpoint_path(folder: Path) -> Path:
    """Where the next checkpoint goes; what a kill left of one that was being written is removed."""
    for path in folder.glob(f"*{UNFINISHED}"):
        shutil.rmtree(path, ignore_errors=True)
    newest = next(iter(list_checkpoints(folder)), None)
    return folder / f"{int(newest.name) + 1 if newest else 1:08d}"


def remove_old_checkpoints(folder: Path, count: int) -> None:
    """Removes all checkpoints but the newest whole ones."""
    kept = valid_checkpoints(folder)[:count]
    for checkpoint in list_checkpoints(folder):
        if checkpoint not in kept:
            # By another name first: what is half removed is none.
            shutil.rmtree(checkpoint.rename(checkpoint.with_suffix(UNFINISHED)), ignore_errors=True)


def check_disk_space(folder: Path, size: int, kept: int) -> None:
    """Refuses a disk without room for the checkpoints that are kept and the next one beside them.

    Args:
        folder: Of the checkpoints; those that stand there are counted.
        size: Bytes of a checkpoint.
        kept: How many are kept.

    Raises:
        InputError: Too little is free.
    """
    training_progress = next(path for path in (folder, *folder.parents) if path.exists())
    expected = size * max(1, kept + 1 - len(list_checkpoints(folder)))
    free = shutil.disk_usage(training_progress).free
    if free < expected:
        raise InputError(
            f"{folder}: expected {expected / 1e6:,.1f} MB of free disk for {kept} checkpoints and the next one, got"
            f" {free / 1e6:,.1f} MB; --train.checkpoints-kept keeps fewer"
        )
