"""Where a batch writes: numbered files that appear all together, when the whole batch is answered."""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from kmha.errors import InputError
from training.io.atomic_write import remove

SUFFIX, ERRORS = ".jsonl", ".errors"
_NUMBER = r"-\d{5,}-of-\d{5,}"


def is_local(place: str) -> bool:
    """Whether a file name belongs to this machine, not to a store such as gs:// or hdfs://."""
    return "://" not in place


def with_folder(place: str) -> str:
    """A place of this machine as an absolute one: Beam finds no files for a pattern without a folder, `in-*`."""
    return os.path.abspath(place) if is_local(place) else place


def is_shard_of(place: str, output: str) -> bool:
    """Whether a file name is one that a batch with this output would write: answers or bad rows."""
    expected = f"{re.escape(with_folder(output))}({re.escape(ERRORS)})?{_NUMBER}{re.escape(SUFFIX)}"
    return bool(re.fullmatch(expected, with_folder(place)))


def shards_of(output: Path) -> list[Path]:
    """The files of a batch that stand already, sorted: answers, then bad rows."""
    if not output.parent.is_dir():
        return []
    found = (path for path in output.parent.iterdir() if is_shard_of(str(path), str(output)))
    return sorted(found, key=lambda path: (path.name.startswith(f"{output.name}{ERRORS}-"), path.name))


@contextlib.contextmanager
def shards_beside(output: Path, overwrite: bool = False) -> Iterator[Path]:
    """A path to write the files of a batch to; when the block ends well they move to `output`, else nothing stays.

    Args:
        output: What the files' names begin with. Missing folders above are made, and removed again after an error.
        overwrite: Whether the files of an earlier batch are replaced, all of them.

    Raises:
        InputError: Such files stand there and must not be replaced, or nobody can write there.
    """
    if not output.name:
        raise InputError(f"{output}: expected what the files' names begin with, got no name")
    if shards_of(output) and not overwrite:
        given = shards_of(output)[0].name
        raise InputError(
            f"{output}: expected a new place, got one with files such as {given}; use --overwrite"
        )
    missing = [folder for folder in output.parents if not folder.exists()]
    beside = output.with_name(f"{output.name}.partial")
    try:
        try:
            remove(beside)
            beside.mkdir(parents=True)
        except OSError as error:
            raise _unwritable(output, error) from error
        yield beside / output.name
        _move(beside, output)
    finally:
        remove(beside)
        with contextlib.suppress(OSError):
            for folder in missing:
                folder.rmdir()


def _move(beside: Path, output: Path) -> None:
    new = shards_of(beside / output.name)
    moved: list[Path] = []
    try:
        for path in shards_of(output):
            path.unlink()
        for path in new:
            moved.append(path.replace(output.parent / path.name))
    except BaseException as error:
        for path in moved:
            path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise _unwritable(output, error) from error
        raise


def _unwritable(output: Path, error: OSError) -> InputError:
    return InputError(f"{output}: cannot write there, {error.strerror or error}")
