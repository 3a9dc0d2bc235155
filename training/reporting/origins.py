"""Which rows a file holds: those that a fit was judged on, those that it learnt from, or others."""

from pathlib import Path
from typing import Any

from kmha.errors import InputError
from kmha.manifest import sha256


def named_rows(manifest: dict[str, Any], data: Path) -> tuple[str, dict[str, Any]]:
    """What rows are called, as by the fit or else as their file, and where all rows of the run come from.

    Args:
        manifest: bundle.json of the run.
        data: The file.

    Returns:
        The name, and by name {"name", "sha256"}, with these rows.

    Raises:
        InputError: The run has trained on them.
    """
    kept = manifest.get("data")
    kept = kept if isinstance(kept, dict) else {}
    origins = {part: each for part, each in kept.items() if isinstance(each, dict)}
    found = sha256(data)
    same = [part for part, each in origins.items() if each.get("sha256") == found]
    if "train" in same:
        raise InputError(
            f"--data {data}: wanted rows that the run has not trained on, given its training rows"
        )
    if same:
        return same[0], origins
    return data.name, origins | {data.name: {"name": str(data), "sha256": found}}
