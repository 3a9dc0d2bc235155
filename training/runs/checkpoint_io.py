"""What a run needs to go on after it was stopped: weights, optimizer, averages, and how far it had come."""

import logging
import os
import re
import shutil
from pathlib import Path
from typing import Any

import tensorflow as tf

from kmha.errors import InputError
from training.cli.exceptions import CheckpointWriteError
from training.runs.checkpoint_folder import (
    UNFINISHED,
    find_damage,
    list_checkpoints,
    next_checkpoint_path,
    read_progress,
    remove_old_checkpoints,
    write_progress,
)

logger = logging.getLogger("kmha")

_STATE = "state"


def state_size(state: tf.Module) -> int:
    """Bytes of the variables that a checkpoint of a state holds."""
    return sum(variable.shape.num_elements() * variable.dtype.size for variable in state.variables)


def write_checkpoint(folder: Path, state: tf.Module, progress: dict[str, Any], kept: int = 2) -> None:
    """Writes a checkpoint; whatever happens meanwhile, those before it stay until it is whole and on the disk.

    Args:
        folder: Of the run's checkpoints; nothing else may be kept there.
        state: Holds every variable of the run.
        progress: JSON values that say how far the run had come.
        kept: How many checkpoints stay, the newest included.

    Raises:
        CheckpointWriteError: The disk is full, or nobody can write there any more.
    """
    beside = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        place = next_checkpoint_path(folder)
        beside = place.with_suffix(UNFINISHED)
        beside.mkdir()
        tf.train.Checkpoint(state=state).write(str(beside / _STATE))
        write_progress(beside, progress)
        # The disk may lose power between a rename and what was written before it.
        for path in (*beside.iterdir(), beside):
            _to_disk(path)
        beside.rename(place)
        _to_disk(folder)
        remove_old_checkpoints(folder, kept)
    except (OSError, tf.errors.OpError) as error:
        raise CheckpointWriteError(
            f"no checkpoint could be written into {folder}, {_reason(error)}"
        ) from error
    finally:
        if beside is not None:
            shutil.rmtree(beside, ignore_errors=True)


def read_checkpoint(folder: Path, state: tf.Module) -> dict[str, Any]:
    """Restores every variable from the newest checkpoint that is whole, and returns its progress.

    Raises:
        InputError: There is no checkpoint, none is whole, or they belong to another model.
    """
    checkpoints = list_checkpoints(folder)
    if not checkpoints:
        raise InputError(f"--resume: expected a checkpoint in {folder}, got none; start without --resume")
    for checkpoint in checkpoints:
        reason = find_damage(checkpoint) or _restored(checkpoint, state)
        if not reason:
            return read_progress(checkpoint)
        logger.info(f"checkpoint {checkpoint} is damaged: {reason}; the one before it is tried")
    raise InputError(
        f"--resume: expected a whole checkpoint in {folder}, all are damaged; --overwrite starts anew"
    )


def _restored(checkpoint: Path, state: tf.Module) -> str:
    """Restores a state, or says what is wrong with the files."""
    try:
        # A checksum for each value tells what sizes do not.
        restored = tf.train.Checkpoint(state=state).read(str(checkpoint / _STATE))
        restored.assert_existing_objects_matched().expect_partial()
    except tf.errors.OpError as error:
        return _plain(error)
    except (AssertionError, LookupError, ValueError) as error:
        raise InputError(f"--resume: the checkpoint {checkpoint} is of another model") from error
    return ""


def _reason(error: OSError | tf.errors.OpError) -> str:
    """Why nothing could be written."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error, tf.errors.ResourceExhaustedError):
        return "No space left on device"
    # TensorFlow has the file before what is wrong with it.
    return _plain(error).rpartition("; ")[2]


def _plain(error: tf.errors.OpError) -> str:
    """The message of an error without the names of nodes and operations."""
    line = next(iter(str(error.message).splitlines()), type(error).__name__)
    return re.sub(r"^(\{\{.*?\}\} )+| \[Op:\w+\]$", "", line)


def _to_disk(path: Path) -> None:
    """Waits until a file or folder is on the disk itself."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
