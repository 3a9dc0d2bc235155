"""Turns runs away that answer nothing which a server or a device would ask."""

from pathlib import Path

from kmha.errors import InputError
from kmha.manifest import A_MODEL, MASKED_LM, read_manifest


def check_exportable(run: Path) -> None:
    """Raises InputError where a run folder holds a model that has no exports, or is no run folder."""
    task = read_manifest(run)["task"]
    if task == MASKED_LM:
        raise InputError(
            f"{run}: wanted a classifier, a matcher or a tagger, given {A_MODEL[task]};"
            f" start one from it with training.fit --encoder.pretrained {run}"
        )
