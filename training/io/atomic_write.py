"""Artefacts are written beside their place and renamed: nobody ever reads half of one."""

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kmha.errors import InputError


@contextlib.contextmanager
def atomic_write(final: Path, overwrite: bool = False, flag: str = "") -> Iterator[Path]:
    """A path to write a file or folder to; it becomes `final` when the block ends well, else nothing stays.

    Args:
        final: Where the artefact shall stand. Missing folders above are made, and removed again after an error.
        overwrite: Whether an artefact that stands there is replaced.
        flag: What named the place, for the message that nobody can write there.

    Raises:
        InputError: Something stands there and must not be replaced, a folder where a file shall stand, or nobody
            can write there.
    """
    final = Path(final)
    if final.exists() and not overwrite:
        raise InputError(f"{final}: expected a new place, got one that is taken; use --overwrite")
    missing = [folder for folder in final.parents if not folder.exists()]
    beside = final.with_name(f"{final.name}.partial")
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        remove(beside)
        yield beside
        if final.is_dir() and not beside.is_dir():
            # A folder is more than the file that would take its place.
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if final.is_dir():
            remove(final)
        beside.replace(final)
    except OSError as error:
        raise InputError(
            f"{f'{flag} {final}'.strip()}: cannot write there, {error.strerror or error}"
        ) from error
    finally:
        remove(beside)
        with contextlib.suppress(OSError):
            for folder in missing:
                folder.rmdir()


def remove(path: Path) -> None:
    """Removes a file or a folder, if there is one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def write_result(path: Path, result: dict[str, Any]) -> None:
    """Writes JSON values to a file; raises InputError where nobody can write."""
    with atomic_write(path, overwrite=True) as beside:
        beside.write_text(json.dumps(result, ensure_ascii=False, indent=1) + "\n", "utf-8")


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
                f"{file}: expected a file that stays as it is while it is read, got one that has changed meanwhile"
            ) from cause


def _state(file: Path) -> tuple[int, ...] | None:
    """Size, time in ns, and place on the disk; None: there is no such file."""
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns, status.st_ino, status.st_dev
