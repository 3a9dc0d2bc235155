"""The temporary folder of a run, which goes with it, also after a kill: the next run of the same place removes it."""

import contextlib
import gzip
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from kmha.errors import InputError

_PREFIX = "kmha-"
NOTE = "scratch.txt"


@contextlib.contextmanager
def scratch_folder(run: Path) -> Iterator[Path]:
    """A temporary folder whose place is noted in the unfinished run while it is there.

    Args:
        run: The unfinished run, which no other process writes into.
    """
    note = run / NOTE
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as scratch:
        note.write_text(scratch, "utf-8")
        try:
            yield Path(scratch)
        finally:
            note.unlink(missing_ok=True)


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
    """Has an error of writing that does not say where tell the path, and so which disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def remove_left(run: Path) -> None:
    """Removes the temporary folder that a killed process has left of an unfinished run, if there is one."""
    with contextlib.suppress(OSError, ValueError):
        left = Path((run / NOTE).read_text("utf-8"))
        # The note is a file that anybody may have written: only what such a process makes is removed.
        ours = left.parent == Path(tempfile.gettempdir()) and left.name.startswith(_PREFIX)
        if ours and not left.is_symlink() and left.stat().st_uid == os.getuid():
            shutil.rmtree(left, ignore_errors=True)
    (run / NOTE).unlink(missing_ok=True)


_LOOKED_AT = 1 << 20
# Token ids are four bytes; scripts of one character a token, the densest, take three bytes for it.
TOKEN_BYTES_PER_TEXT_BYTE = 4 / 3
# Where rows stand in their file, and their tokens' places: what comes to a row beside its text.
ROW_BYTES = 32


def check_room(folder: Path, needed: float, what: str) -> None:
    """Refuses to begin what the disk cannot hold.

    Args:
        folder: Where it would go; its parent exists.
        needed: Bytes, about.
        what: It is.

    Raises:
        InputError: Less is free.
    """
    free = shutil.disk_usage(folder.parent).free
    if needed > free:
        raise InputError(
            f"{folder.parent}: expected {needed / 1e6:,.1f} MB of free disk for {what}, got {free / 1e6:,.1f} MB;"
            " the environment variable TMPDIR names another folder"
        )


def unpacked_bytes(paths: Iterable[Path]) -> float:
    """How large files are without compression: of gzipped ones an estimate from their beginning."""
    return sum(path.stat().st_size * _growth(path) for path in paths if path.is_file())


def _growth(path: Path) -> float:
    if not path.name.lower().endswith(".gz"):
        return 1.0
    try:
        with open(path, "rb") as packed:
            data = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(packed.read(_LOOKED_AT))
    except (OSError, zlib.error, gzip.BadGzipFile):
        return 1.0  # What is wrong with it is told where it is read.
    return max(1.0, len(data) / max(1, min(_LOOKED_AT, path.stat().st_size)))
