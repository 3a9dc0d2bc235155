"""Writes files and folders atomically: to a temporary path next to the target, then renamed."""

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
    """Yields a temporary path that is renamed to `final` if the block succeeds and removed if it fails.

    Args:
        final: Path of the result. Missing parent folders are created, and removed again after an error.
        overwrite: Whether an existing `final` is replaced.
        flag: The flag that set the path, for error messages.

    Raises:
        InputError: `final` exists, is a folder while the result is a file, or is not writable.
    """
    final = Path(final)
    if final.exists() and not overwrite:
        raise InputError(f"{final}: expected a new place, got one that is taken; use --overwrite")
    missing = [folder for folder in final.parents if not folder.exists()]
    partial = final.with_name(f"{final.name}.partial")
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        remove(partial)
        yield partial
        if final.is_dir() and not partial.is_dir():
            # A file never replaces a folder.
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if final.is_dir():
            remove(final)
        partial.replace(final)
    except OSError as error:
        raise InputError(
            f"{f'{flag} {final}'.strip()}: cannot write there, {error.strerror or error}"
        ) from error
    finally:
        remove(partial)
        with contextlib.suppress(OSError):
            for folder in missing:
                folder.rmdir()


def remove(path: Path) -> None:
    """Removes a file or a folder if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def write_result(path: Path, result: dict[str, Any]) -> None:
    """Writes JSON values to a file; raises InputError if the path is not writable."""
    with atomic_write(path, overwrite=True) as partial:
        partial.write_text(json.dumps(result, ensure_ascii=False, indent=1) + "\n", "utf-8")


@contextlib.contextmanager
def unchanged(*files: Path | None) -> Iterator[None]:
    """Checks that files do not change while the block runs, even if the block raises an InputError.

    Raises InputError if size, modification time, inode or device of a file has changed. None is ignored.
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
    """Returns size, modification time in ns, inode and device; None if the file does not exist."""
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns, status.st_ino, status.st_dev
