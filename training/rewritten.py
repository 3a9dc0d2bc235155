"""A run folder that gets another bundle: whole before it takes the place of the old one."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

from kmha.errors import InputError
from training.run_folder import take_place


def rewrite(folder: Path, bundle: Any) -> None:
    """Puts a bundle in the place of that of a run; what else the folder holds stays.

    Args:
        folder: Of the run.
        bundle: A trained bundle.

    Raises:
        InputError: Nobody can write there.
    """
    final = folder.resolve()
    try:
        with tempfile.TemporaryDirectory(prefix=f".{final.name}.", dir=final.parent) as aside:
            new = Path(shutil.copytree(final, Path(aside) / final.name))
            bundle.save(new)
            take_place(new, final)
    except OSError as error:
        raise InputError(f"{folder}: cannot write there, {error.strerror or error}") from error
