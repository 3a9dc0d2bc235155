"""Writes and reads checkpoints: the variables of a run and its progress."""

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
    """Bytes of the variables of a state."""
    return sum(variable.shape.num_elements() * variable.dtype.size for variable in state.variables)


def write_checkpoint(folder: Path, state: tf.Module, progress: dict[str, Any], retained: int = 2) -> None:
    """Writes a checkpoint, or raises CheckpointWriteError; earlier ones stay until it is complete and on disk."""
    unfinished = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        final = next_checkpoint_path(folder)
        unfinished = final.with_suffix(UNFINISHED)
        unfinished.mkdir()
        tf.train.Checkpoint(state=state).write(str(unfinished / _STATE))
        write_progress(unfinished, progress)
        # A power failure could otherwise leave the new name with incomplete files.
        for path in (*unfinished.iterdir(), unfinished):
            _fsync(path)
        unfinished.rename(final)
        _fsync(folder)
        remove_old_checkpoints(folder, retained)
    except (OSError, tf.errors.OpError) as error:
        raise CheckpointWriteError(f"cannot write a checkpoint into {folder}, {_reason(error)}") from error
    finally:
        if unfinished is not None:
            shutil.rmtree(unfinished, ignore_errors=True)


def read_checkpoint(folder: Path, state: tf.Module) -> dict[str, Any]:
    """Restores every variable from the newest undamaged checkpoint, and returns its progress.

    Raises InputError if there is none, all are damaged, or they are of another model or version.
    """
    checkpoints = list_checkpoints(folder)
    if not checkpoints:
        raise InputError(f"--resume: expected a checkpoint in {folder}, got none; start without --resume")
    for checkpoint in checkpoints:
        damage = find_damage(checkpoint) or _restore(checkpoint, state)
        if not damage:
            return read_progress(checkpoint)
        logger.info(f"checkpoint {checkpoint} is damaged: {damage}; trying the one before it")
    raise InputError(
        f"--resume: expected a valid checkpoint in {folder}, all are damaged; use --overwrite to start over"
    )


def _restore(checkpoint: Path, state: tf.Module) -> str:
    """Restores a state; returns what is wrong with the files, or an empty string."""
    try:
        # TensorFlow compares the checksum of each value.
        restored = tf.train.Checkpoint(state=state).read(str(checkpoint / _STATE))
        restored.assert_existing_objects_matched().expect_partial()
    except tf.errors.OpError as error:
        return _message(error)
    except (AssertionError, LookupError, ValueError) as error:
        raise InputError(
            f"--resume: expected a checkpoint of this model, got one of another model or another version: {checkpoint};"
            " use --overwrite in place of --resume to start over"
        ) from error
    return ""


def _reason(error: OSError | tf.errors.OpError) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error, tf.errors.ResourceExhaustedError):
        return "No space left on device"
    # TensorFlow's message is "file; reason".
    return _message(error).rpartition("; ")[2]


def _message(error: tf.errors.OpError) -> str:
    """The message of an error without the names of nodes and operations."""
    line = next(iter(str(error.message).splitlines()), type(error).__name__)
    return re.sub(r"^(\{\{.*?\}\} )+| \[Op:\w+\]$", "", line)


def _fsync(path: Path) -> None:
    """Waits until a file or folder is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
