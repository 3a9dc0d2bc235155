"""Where a page is written."""

import os
from pathlib import Path

from kmha.errors import InputError
from training.beside import written_beside

SUFFIXES = (".html", ".htm")


def write_page(path: Path, content: str) -> None:
    """Writes a page, or the text that goes with it, beside its place and renames it.

    Raises:
        InputError: Nobody can write there.
    """
    with written_beside(path, overwrite=True, flag="--out") as beside:
        beside.write_bytes(content.encode("utf-8", "replace"))


def check_out(path: Path) -> None:
    """Refuses a place for a page before any work is done.

    Raises:
        InputError: Its name does not end as a page's, or it cannot be written to.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"--out {path}: wanted a name that ends in .html, given another")
    if path.is_dir():
        raise InputError(f"--out {path}: wanted a file, given a folder")
    if not path.parent.is_dir():
        raise InputError(f"--out {path}: wanted a folder that exists, given {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"--out {path}: cannot write there")
