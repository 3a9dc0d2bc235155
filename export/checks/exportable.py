"""Turns runs away that answer nothing which a server or a device would ask."""

from pathlib import Path

from kmha.bundle.manifest import CLASSIFY, MASKED_LM, MODEL_NAMES, read_manifest
from kmha.errors import InputError


def check_exportable(run: Path) -> None:
    """Raises InputError where a run folder holds a model that has no exports, or is no run folder."""
    task = read_manifest(run)["task"]
    if task == MASKED_LM:
        raise InputError(
            f"{run}: expected a classifier, a matcher or a tagger, got {MODEL_NAMES[task]};"
            f" start one from it with training.fit --encoder.pretrained {run}"
        )


def check_single_texts(run: Path, command: str) -> None:
    """Raises InputError where a run folder holds another model than a classifier, or is none.

    Args:
        run: A run folder.
        command: For the message.
    """
    task = read_manifest(run)["task"]
    if task != CLASSIFY:
        raise InputError(
            f"{run}: expected a classifier, since {command} asks single texts, got {MODEL_NAMES[task]}"
        )


class CheckError(Exception):
    """What was made is not what it must be, or answers other than its bundle; the message is one line."""
