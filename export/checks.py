"""Checks that a run can be exported, before TensorFlow is imported."""

from pathlib import Path

from kmha.bundle.manifest import CLASSIFY, MASKED_LM, MODEL_NAMES, read_manifest
from kmha.errors import InputError


def check_exportable(run: Path) -> None:
    """Raises InputError if the folder is no run folder, or its model cannot be exported."""
    task = read_manifest(run)["task"]
    if task == MASKED_LM:
        raise InputError(
            f"{run}: expected a classifier, a matcher or a tagger, got {MODEL_NAMES[task]};"
            f" start one from it with training.fit --encoder.pretrained {run}"
        )


def check_single_texts(run: Path, command: str) -> None:
    """Raises InputError, with the command's name, if the folder is not the run folder of a classifier."""
    task = read_manifest(run)["task"]
    if task != CLASSIFY:
        raise InputError(
            f"{run}: expected a classifier, since {command} takes single texts, got {MODEL_NAMES[task]}"
        )
