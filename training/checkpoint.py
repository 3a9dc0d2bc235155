"""What a run needs to go on after it was stopped: weights, optimizer, averages, and how far it had come."""

import json
import shutil
from pathlib import Path

import tensorflow as tf

from kmha.errors import InputError

PROGRESS = "progress.json"
# Two names in turn: the older checkpoint stays whole until the newer one is.
STATES = ("state-0", "state-1")


def write_checkpoint(folder: Path, state: tf.Module, progress: dict) -> None:
    """Writes a checkpoint; a kill at any moment leaves this one or the one before.

    Args:
        folder: Of the run's checkpoint; nothing else may be kept there.
        state: Holds every variable of the run.
        progress: JSON values that say how far the run had come.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = STATES[1] if _current(folder) == STATES[0] else STATES[0]
    tf.train.Checkpoint(state=state).write(str(folder / name))
    beside = folder / f"{PROGRESS}.new"
    beside.write_text(json.dumps({"state": name, "progress": progress}), "utf-8")
    # From this rename on the new one counts.
    beside.replace(folder / PROGRESS)
    for path in folder.iterdir():
        if path.name != PROGRESS and path.name.split(".")[0] != name:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def read_checkpoint(folder: Path, state: tf.Module) -> dict:
    """Restores every variable from a checkpoint and returns the progress.

    Raises:
        InputError: There is no checkpoint, or it belongs to another model.
    """
    if not (folder / PROGRESS).exists():
        raise InputError(f"--resume: wanted a checkpoint in {folder}, given none; start without --resume")
    try:
        name = _current(folder)
        restored = tf.train.Checkpoint(state=state).read(str(folder / str(name)))
        restored.assert_existing_objects_matched().expect_partial()
        return json.loads((folder / PROGRESS).read_text("utf-8"))["progress"]
    except (AssertionError, LookupError, ValueError, tf.errors.OpError) as error:
        raise InputError(f"--resume: the checkpoint in {folder} is of another model or damaged") from error


def _current(folder: Path) -> str | None:
    """Name of the state that counts, None without one."""
    path = folder / PROGRESS
    return json.loads(path.read_text("utf-8"))["state"] if path.exists() else None
