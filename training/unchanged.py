"""Files that must stay as they are while they are read."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from kmha.errors import InputError


@contextlib.contextmanager
def unchanged(*files: Path | None) -> Iterator[None]:
    """Refuses files that change in the block, also where what was read of them has been refused already.

    Args:
        *files: None is no file.

    Raises:
        InputError: One of them has another size, time or place on the disk than before.
    """
    before = {file: _state(file) for file in files if file is not None}
    try:
        yield
    except InputError as error:
        _check(before, error)
        raise
    _check(before)


def _check(before: dict[Path, tuple[int, ...] | None], cause: InputError | None = None) -> None:
    for file, state in before.items():
        if _state(file) != state:
            raise InputError(
                f"{file}: wanted a file that stays as it is while it is read, given one that has changed meanwhile"
            ) from cause


def _state(file: Path) -> tuple[int, ...] | None:
    """Size, time in ns, and place on the disk; None: there is no such file."""
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns, status.st_ino, status.st_dev
