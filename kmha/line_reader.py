"""Reads lines of limited length: a compressed file or a pipe may hold a line that is larger than the memory."""

import io
from collections.abc import Iterator
from typing import BinaryIO

from kmha.errors import InputError

MAX_LINE_BYTES = 1 << 26


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
