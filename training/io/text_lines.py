"""Opens UTF-8 text files, plain or gzipped, with errors that show file and line."""

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kmha.errors import InputError

_BOM = b"\xef\xbb\xbf"


@contextmanager
def open_lines(path: Path) -> Iterator[io.TextIOWrapper]:
    """Opens a UTF-8 file whose lines end at line feeds only; gzipped if its name ends in `.gz`.

    A byte order mark is skipped. Raises InputError if the file is missing, unreadable or damaged, also inside the
    block.
    """
    try:
        with _binary(path) as stream:
            if stream.peek(len(_BOM))[: len(_BOM)] == _BOM:
                stream.read(len(_BOM))
            # newline="\n": a carriage return inside a field must not shift the line numbers.
            with io.TextIOWrapper(stream, encoding="utf-8", newline="\n") as lines:
                yield lines
    except UnicodeDecodeError:
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


def _binary(path: Path) -> io.BufferedReader | gzip.GzipFile:
    return gzip.open(path, "rb") if path.name.lower().endswith(".gz") else open(path, "rb")


def _invalid_utf8(path: Path) -> InputError:
    # The decoder works on blocks, so the file is read again to find the line.
    number = 0
    try:
        with _binary(path) as stream:
            for line in stream:
                number += 1
                line.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = f"byte 0x{error.object[error.start]:02x} at position {error.start + 1} of the line"
        return InputError(f"{path}:{number}: expected UTF-8 text, got {byte}")
    except (EOFError, zlib.error, OSError):
        pass  # Damaged gzip data can decompress to invalid UTF-8 before it fails.
    return InputError(f"{path}:{number + 1}: expected UTF-8 text, got damaged data")
