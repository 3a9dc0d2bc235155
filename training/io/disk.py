"""Files on disk: reading lines, atomic writes, the temporary folder of a run, and free space."""

import contextlib
import errno
import fcntl
import gzip
import io
import json
import math
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kmha.errors import InputError
from kmha.input_files import BoundedLines, bounded_lines, open_input
from training.cli.exceptions import check_stop, delayed_stop

# Of temporary folders, and the file in the run folder that has their path.
_PREFIX, NOTE = "kmha-", "scratch.txt"
# Of folders for unfinished files: the end of the name, and how much of the target's name precedes it.
_STAGING, _LONGEST_PREFIX = ".partial", 40
# In a folder while a process publishes there.
_PUBLISHING = ".publishing.lock"
# Bytes of a gzipped file that are read to estimate its size.
_LOOKED_AT = 1 << 20
# A token id takes 4 bytes. The densest scripts have one token per character of 3 bytes.
TOKEN_BYTES_PER_TEXT_BYTE = 4 / 3
# Row and token offsets, in addition to the text.
ROW_BYTES = 32
_BOM = b"\xef\xbb\xbf"


@contextlib.contextmanager
def atomic_write(
    final: Path, overwrite: bool = False, flag: str = "", companions: Mapping[Path, bytes] | None = None
) -> Iterator[Path]:
    """Yields a temporary path that is renamed to `final` if the block succeeds and removed if it fails.

    Missing parent folders are created, and removed again after an error. `flag` set the path, for error messages.
    `companions` are files in the same folder, by path, which are published together with `final`; one that exists with
    the same content is not changed. Of concurrent writers the last one replaces all files of the others. Raises
    InputError if a file exists, `final` is a folder while the result is a file, or it is not writable.
    """
    final, companions = Path(final), companions or {}
    _check_free(final, companions, overwrite)
    with writing(final, flag), staging_folder(final) as staging:
        for path, content in companions.items():
            (staging / path.name).write_bytes(content)
        yield staging / final.name
        with publishing(final.parent):
            _check_free(final, companions, overwrite)
            # The model is last: when it exists, so do the other files.
            for path, content in companions.items():
                if not _has_content(path, content):
                    (staging / path.name).replace(path)
            _replace(staging / final.name, final)


def _check_free(final: Path, companions: Mapping[Path, bytes], overwrite: bool) -> None:
    if overwrite:
        return
    taken = (
        path for path, content in companions.items() if path.exists() and not _has_content(path, content)
    )
    path = final if final.exists() else next(taken, None)
    if path is not None:
        raise InputError(f"{path}: expected a new place, got one that is taken; use --overwrite")


def _has_content(path: Path, content: bytes) -> bool:
    return path.is_file() and path.stat().st_size == len(content) and path.read_bytes() == content


def _replace(new: Path, final: Path) -> None:
    if not final.is_dir():
        new.replace(final)
        return
    if not new.is_dir():
        # A file never replaces a folder.
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    # The staging folder of the new one is removed later, with the old one in it.
    old = final.rename(Path(tempfile.mkdtemp(dir=new.parent), final.name))
    try:
        new.rename(final)
    except BaseException:
        old.rename(final)
        raise


@contextlib.contextmanager
def writing(final: Path, flag: str = "") -> Iterator[None]:
    """Raises InputError with the path, and the flag that set it, for an OSError inside the block."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{f'{flag} {final}'.strip()}: cannot write there, {error.strerror or error}"
        ) from error


@contextlib.contextmanager
def staging_folder(final: Path) -> Iterator[Path]:
    """Yields a folder for unfinished files next to `final`, and removes it.

    Each process has its own. Missing parent folders are created, and removed again after an error. What killed
    processes left is removed: a process holds a lock of its folder. Raises OSError if it cannot be created.
    """
    check_stop()
    missing = [folder for folder in final.parents if not folder.exists()]
    prefix, staging = f".{final.name[:_LONGEST_PREFIX]}.", None
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with publishing(final.parent):
            _remove_abandoned(final.parent, prefix)
            staging = Path(tempfile.mkdtemp(prefix=prefix, suffix=_STAGING, dir=final.parent))
            lock = _lock(staging, os.O_RDONLY)
        try:
            yield staging
        finally:
            os.close(lock)
    finally:
        if staging is not None:
            remove(staging)
        with contextlib.suppress(OSError):
            for folder in missing:
                folder.rmdir()


def _remove_abandoned(folder: Path, prefix: str) -> None:
    for path in folder.iterdir():
        if path.name.startswith(prefix) and path.name.endswith(_STAGING) and path.is_dir():
            with contextlib.suppress(OSError):
                os.close(_lock(path, os.O_RDONLY, wait=False))
                remove(path)


@contextlib.contextmanager
def publishing(folder: Path) -> Iterator[None]:
    """Waits for other processes that publish in a folder; delays SIGTERM and SIGINT to the end of the block.

    Raises OSError if the folder is not writable.
    """
    path = folder / _PUBLISHING
    while True:
        handle = _lock(path, os.O_CREAT | os.O_RDWR)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                break
        # The process that held the lock has removed the file.
        os.close(handle)
    try:
        with delayed_stop():
            yield
    finally:
        path.unlink(missing_ok=True)
        os.close(handle)


def _lock(path: Path, flags: int, wait: bool = True) -> int:
    """Opens and locks a file or folder; returns its descriptor. Raises BlockingIOError instead of waiting."""
    handle = os.open(path, flags | os.O_NOFOLLOW, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BaseException:
        os.close(handle)
        raise
    return handle


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
        partial.write_text(to_json(result, indent=1) + "\n", "utf-8")


def to_json(values: Any, indent: int | None = None) -> str:
    """The JSON text of figures; NaN and infinity, which JSON cannot express, become null."""
    return json.dumps(_finite(values), ensure_ascii=False, allow_nan=False, indent=indent)


def _finite(values: Any) -> Any:
    if isinstance(values, dict):
        return {name: _finite(value) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return [_finite(value) for value in values]
    return None if isinstance(values, float) and not math.isfinite(values) else values


@contextlib.contextmanager
def unchanged(*files: Path | None) -> Iterator[None]:
    """Checks that size, time, inode and device of files do not change during the block, even if it fails."""
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


def require_disk_space(folder: Path, needed: float, what: str) -> None:
    """Raises InputError if the disk of a folder, whose parent exists, has fewer free bytes than `what` needs."""
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
        with open_input(path) as packed:
            data = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(packed.read(_LOOKED_AT))
    except (OSError, zlib.error, gzip.BadGzipFile):
        return 1.0  # The reader of the file reports the error.
    return max(1.0, len(data) / max(1, min(_LOOKED_AT, path.stat().st_size)))


@contextmanager
def open_lines(path: Path, encoding: str = "") -> Iterator[io.TextIOWrapper]:
    """Opens a text file whose lines end at line feeds only; gzipped if its name ends in `.gz`.

    The default encoding is UTF-8, where a byte order mark is skipped. Raises InputError if the file is missing,
    unreadable, damaged or no regular file, if it changes while it is read, or a line is too long, also inside the
    block.
    """
    with unchanged(path):
        try:
            with _binary(path) as stream:
                start = stream.peek(len(_BOM))[: len(_BOM)]
                if not encoding and b"\0" in start[:2]:
                    raise InputError(f"{path}:1: expected UTF-8 text, got byte 0x00{_encoding_hint(start)}")
                if not encoding and start == _BOM:
                    stream.read(len(_BOM))
                # newline="\n": a carriage return inside a field must not shift the line numbers.
                bounded = BoundedLines(stream, path)
                with io.TextIOWrapper(bounded, encoding=encoding or "utf-8", newline="\n") as lines:
                    yield lines
        except UnicodeError as error:
            if encoding:
                raise InputError(f"{path}: expected text in the encoding {encoding}, got {error}") from None
            raise _invalid_utf8(path) from None
        except FileNotFoundError:
            raise InputError(f"{path}: expected a file, got no such file") from None
        except IsADirectoryError:
            raise InputError(f"{path}: expected a file, got a folder") from None
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise InputError(f"{path}: expected gzip data, got damaged or other data ({error})") from None
        except OSError as error:
            raise InputError(
                f"{path}: expected a readable file, got an error: {error.strerror or error}"
            ) from None


@contextmanager
def _binary(path: Path) -> Iterator[io.BufferedReader | gzip.GzipFile]:
    with open_input(path) as file:
        yield gzip.GzipFile(fileobj=file) if path.name.lower().endswith(".gz") else file


def _invalid_utf8(path: Path) -> InputError:
    # The decoder works on blocks, so the file is read again to find the line.
    number = 0
    try:
        with _binary(path) as stream:
            for line in bounded_lines(stream, path):
                number += 1
                line.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = f"byte 0x{error.object[error.start]:02x} at position {error.start + 1} of the line"
        return InputError(f"{path}:{number}: expected UTF-8 text, got {byte}{_encoding_hint(error.object)}")
    except (EOFError, zlib.error, OSError):
        pass  # Damaged gzip data can decompress to invalid UTF-8 before it fails.
    return InputError(f"{path}:{number + 1}: expected UTF-8 text, got damaged data")


def _encoding_hint(line: bytes) -> str:
    found = "utf-16" if b"\0" in line else "cp1252"
    return f"; save as UTF-8 or give --data.encoding, for example {found}"
