"""Turns matchers and taggers away from commands that give single texts their labels."""

from pathlib import Path

from kmha.errors import InputError
from kmha.manifest import A_MODEL, CLASSIFY, read_manifest


def check_single_texts(run: Path, command: str) -> None:
    """Raises InputError where a run folder holds another model than a classifier, or is none.

    Args:
        run: A run folder.
        command: For the message.
    """
    task = read_manifest(run)["task"]
    if task != CLASSIFY:
        raise InputError(
            f"{run}: wanted a classifier, since {command} asks single texts, given {A_MODEL[task]}"
        )
