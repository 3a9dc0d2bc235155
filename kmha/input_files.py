"""Opens and reads files of unknown origin: regular files only, lines and JSON of limited size.

A compressed file or a pipe may hold a line that is larger than the memory, and a pipe without a writer blocks.
"""

import io
import json
import math
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from kmha.errors import InputError, shorten

MAX_LINE_BYTES = 1 << 26
MAX_JSON_BYTES = 1 << 28
# JSON that kmha writes has fewer levels. Larger integers fit into no array; they are read as floating-point numbers,
# which no check of a size accepts.
_MOST_LEVELS, _MOST_DIGITS = 100, 18


def open_input(path: Path) -> io.BufferedReader:
    """Opens a regular file; raises OSError, and InputError for a pipe, a device or a socket."""
    try:
        file = open(path, "rb", opener=lambda at, flags: os.open(at, flags | os.O_NONBLOCK))
    except ValueError as error:
        raise InputError(f"{path}: expected the name of a file, {error}") from None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise InputError(
            f"{path}: expected a regular file, got a pipe or a device; write its content to a file"
        )
    return file


def read_input(path: Path, most: int = MAX_JSON_BYTES) -> bytes:
    """The content of a regular file; raises OSError, and InputError if it has more bytes or is no regular file."""
    with open_input(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise InputError(f"{path}: expected at most {most:,} bytes, got more")
    return content


def parse_json(content: bytes | str, place: object) -> Any:
    """The value of JSON text of unknown origin.

    Raises InputError, which starts with `place`, for invalid text or UTF-8, NaN, infinity, numbers
    beyond the range of floats, more than 100 levels, and half surrogate pairs.
    """
    try:
        text = content.decode("utf-8") if isinstance(content, bytes) else content
        value = json.loads(text, parse_int=_integer, parse_float=_finite, parse_constant=_finite)
        _check_levels(value)
        # Only an escape can produce half a pair, which UTF-8 cannot encode.
        if "\\ud" in text or "\\uD" in text:
            json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except UnicodeEncodeError:
        raise InputError(f"{place}: not valid JSON: half a surrogate pair") from None
    except RecursionError:
        raise InputError(
            f"{place}: not valid JSON: expected at most {_MOST_LEVELS} levels, got more"
        ) from None
    except ValueError as error:
        raise InputError(f"{place}: not valid JSON: {error}") from error
    return value


def read_json(path: Path, expected: str = "a JSON file") -> dict[str, Any]:
    """The JSON object in a file; raises InputError, with what is expected, if there is none."""
    try:
        content = read_input(path)
    except OSError as error:
        raise InputError(f"{path}: expected {expected}, {error.strerror or error}") from error
    values = parse_json(content, path)
    if not isinstance(values, dict):
        raise InputError(f"{path}: must be a JSON object, got {type(values).__name__}")
    return values


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= _MOST_DIGITS else _finite(digits)


def _finite(number: str) -> float:
    if not math.isfinite(float(number)):
        raise ValueError(f"expected finite numbers, got {shorten(number)}")
    return float(number)


def _check_levels(value: Any) -> None:
    levels, values = 0, [value]
    while containers := [each for each in values if isinstance(each, dict | list)]:
        levels += 1
        if levels > _MOST_LEVELS:
            raise RecursionError
        values = [
            inner for each in containers for inner in (each.values() if isinstance(each, dict) else each)
        ]


def _too_long(name: object, number: int) -> InputError:
    return InputError(f"{name}:{number}: expected a line of at most {MAX_LINE_BYTES:,} bytes, got more")


def bounded_lines(stream: BinaryIO | io.BufferedIOBase, name: object) -> Iterator[bytes]:
    """Yields the lines of a stream with their line ends; raises InputError, with `name` and line, for a longer one."""
    number = 0
    while line := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            raise _too_long(name, number)
        yield line


class BoundedLines(io.BufferedIOBase):
    """A stream for `io.TextIOWrapper` that raises InputError, with `name` and line, for a line that is too long."""

    def __init__(self, stream: io.BufferedIOBase, name: object):
        self._stream, self.name = stream, str(name)
        self._number, self._length = 1, 0  # of the unfinished line

    def readable(self) -> bool:
        """See `io.BufferedIOBase`."""
        return True

    def read1(self, size: int = -1) -> bytes:
        """See `io.BufferedIOBase`."""
        block = self._stream.read1(size)
        last = block.rfind(b"\n")
        if last < 0:
            self._length += len(block)
        else:
            self._number, self._length = self._number + block.count(b"\n"), len(block) - last - 1
        if self._length > MAX_LINE_BYTES:
            raise _too_long(self.name, self._number)
        return block
