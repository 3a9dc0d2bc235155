"""The temporary folder of a run, which goes with it, also after a kill: the next run of the same place removes it."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

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
