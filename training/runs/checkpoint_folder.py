"""The checkpoints in a folder: which are valid, which to remove, and the disk space for more.

Each checkpoint is a folder named by a number. It is written under another name and renamed when it is complete. This
module does not import TensorFlow, unlike `training.runs.checkpoint_io`.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from kmha.errors import InputError
from kmha.input_files import parse_json, read_input

PROGRESS = "progress.json"
UNFINISHED = ".partial"
_FILES, _PROGRESS = "files", "progress"


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a folder, valid or damaged, the newest first."""
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if path.name.isdigit() and path.is_dir()]
    return sorted(found, key=lambda path: int(path.name), reverse=True)


def find_damage(checkpoint: Path) -> str:
    """What is wrong with the names and sizes of the files of a checkpoint; empty if it is valid."""
    try:
        written = parse_json(read_input(checkpoint / PROGRESS), PROGRESS)
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
    """The undamaged checkpoints in a folder, the newest first."""
    return [checkpoint for checkpoint in list_checkpoints(folder) if not find_damage(checkpoint)]


def newest_valid_checkpoint(folder: Path) -> Path | None:
    """The newest undamaged checkpoint in a folder, or None."""
    return next(iter(valid_checkpoints(folder)), None)


def write_progress(checkpoint: Path, progress: dict[str, Any]) -> None:
    """Writes progress.json: the progress of the run, JSON values, and the sizes of the other files."""
    sizes = {path.name: path.stat().st_size for path in checkpoint.iterdir()}
    (checkpoint / PROGRESS).write_text(
        json.dumps({_FILES: sizes, _PROGRESS: progress}, allow_nan=False), "utf-8"
    )


def read_progress(checkpoint: Path) -> dict[str, Any]:
    """The progress of the run in a valid checkpoint."""
    return json.loads((checkpoint / PROGRESS).read_text("utf-8"))[_PROGRESS]


def next_checkpoint_path(folder: Path) -> Path:
    """The path of the next checkpoint; removes incomplete checkpoints of a killed run."""
    for path in folder.glob(f"*{UNFINISHED}"):
        shutil.rmtree(path, ignore_errors=True)
    newest = next(iter(list_checkpoints(folder)), None)
    return folder / f"{int(newest.name) + 1 if newest else 1:08d}"


def remove_old_checkpoints(folder: Path, count: int) -> None:
    """Removes all checkpoints but the newest valid ones."""
    retained = valid_checkpoints(folder)[:count]
    for checkpoint in list_checkpoints(folder):
        if checkpoint not in retained:
            # Renamed first, so that a partly removed checkpoint is not listed.
            shutil.rmtree(checkpoint.rename(checkpoint.with_suffix(UNFINISHED)), ignore_errors=True)


def check_disk_space(folder: Path, size: int, retained: int) -> None:
    """Raises InputError if the disk has no space for the retained checkpoints and the next one of `size` bytes."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    expected = size * max(1, retained + 1 - len(list_checkpoints(folder)))
    free = shutil.disk_usage(existing).free
    if free < expected:
        raise InputError(
            f"{folder}: expected {expected / 1e6:,.1f} MB of free disk for {retained} checkpoints and the next one, got"
            f" {free / 1e6:,.1f} MB; --train.checkpoints-kept sets their number"
        )
