"""Whether the disk has room for what a run keeps there while it lasts; said before hours of work, not after them."""

import gzip
import shutil
import zlib
from collections.abc import Iterable
from pathlib import Path

from kmha.errors import InputError

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
            f"{folder.parent}: wanted {needed / 1e6:,.1f} MB of free disk for {what}, given {free / 1e6:,.1f} MB;"
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
