"""The temporary folder of a run. After a kill, the next run with the same output path removes it."""

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
    """Creates a temporary folder and records its path in `run`, the folder of the unfinished run, while it exists."""
    note = run / NOTE
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as scratch:
        note.write_text(scratch, "utf-8")
        try:
            yield Path(scratch)
        finally:
            note.unlink(missing_ok=True)


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
    """Adds the path to write errors that lack one, so that the message shows which disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def remove_left(run: Path) -> None:
    """Removes the temporary folder of an unfinished run after a kill, if there is one."""
    with contextlib.suppress(OSError, ValueError):
        left = Path((run / NOTE).read_text("utf-8"))
        # The note is untrusted: remove only folders that `scratch_folder` could have created.
        ours = left.parent == Path(tempfile.gettempdir()) and left.name.startswith(_PREFIX)
        if ours and not left.is_symlink() and left.stat().st_uid == os.getuid():
            shutil.rmtree(left, ignore_errors=True)
    (run / NOTE).unlink(missing_ok=True)


_LOOKED_AT = 1 << 20
# A token id takes 4 bytes. The densest scripts have one token per character of 3 bytes.
TOKEN_BYTES_PER_TEXT_BYTE = 4 / 3
# Row and token offsets, in addition to the text.
ROW_BYTES = 32


def check_room(folder: Path, needed: float, what: str) -> None:
    """Raises InputError if the disk has less free space than needed.

    Args:
        folder: Target folder; its parent exists.
        needed: Approximate bytes.
        what: Name of the data, for the message.
    """
    free = shutil.disk_usage(folder.parent).free
    if needed > free:
        raise InputError(
            f"{folder.parent}: expected {needed / 1e6:,.1f} MB of free disk for {what}, got {free / 1e6:,.1f} MB;"
            " the environment variable TMPDIR names another folder"
        )


def unpacked_bytes(paths: Iterable[Path]) -> float:
    """Total uncompressed size of files in bytes; estimated from the first MiB for gzipped files."""
    return sum(path.stat().st_size * _growth(path) for path in paths if path.is_file())


def _growth(path: Path) -> float:
    if not path.name.lower().endswith(".gz"):
        return 1.0
    try:
        with open(path, "rb") as packed:
            data = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(packed.read(_LOOKED_AT))
    except (OSError, zlib.error, gzip.BadGzipFile):
        return 1.0  # The reader of the file reports the error.
    return max(1.0, len(data) / max(1, min(_LOOKED_AT, path.stat().st_size)))
