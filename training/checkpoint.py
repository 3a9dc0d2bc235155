"""What a run needs to go on after it was stopped: weights, optimizer, averages, and where it stood."""

import json
import shutil
from pathlib import Path

import tensorflow as tf

from kmha.errors import InputError

STATE, PROGRESS = "state", "progress.json"


def write_checkpoint(folder: Path, state: tf.Module, progress: dict) -> None:
    """Writes a checkpoint beside the last one, then takes its place.

    Args:
        folder: Where it shall stand.
        state: Holds every variable of the run.
        progress: JSON values that say where the run stood.
    """
    beside = folder.with_name(folder.name + ".new")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    tf.train.Checkpoint(state=state).write(str(beside / STATE))
    (beside / PROGRESS).write_text(json.dumps(progress), "utf-8")
    old = folder.with_name(folder.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    beside.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def read_checkpoint(folder: Path, state: tf.Module) -> dict:
    """Restores every variable from a checkpoint and returns the progress.

    Raises:
        InputError: There is no checkpoint, or it belongs to another model.
    """
    if not (folder / PROGRESS).exists() and folder.with_name(folder.name + ".old").exists():
        # Killed between the two renames: the older one is whole.
        folder = folder.with_name(folder.name + ".old")
    if not (folder / PROGRESS).exists():
        raise InputError(f"--resume: wanted a checkpoint in {folder}, given none; start without --resume")
    try:
        restored = tf.train.Checkpoint(state=state).read(str(folder / STATE))
        restored.assert_existing_objects_matched().expect_partial()
    except (AssertionError, ValueError, tf.errors.OpError) as error:
        raise InputError(f"--resume: the checkpoint in {folder} is of another model or damaged") from error
    return json.loads((folder / PROGRESS).read_text("utf-8"))
