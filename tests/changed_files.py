"""Files with a changed bit, as after tampering or a disk error."""

from pathlib import Path


def flip_bit(path: Path, place: int | None = None) -> None:
    """Changes one bit of a file, without changing its size.

    Args:
        path: The file.
        place: The byte, from the end where it is negative; None: the middle one.
    """
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if place is None else place] ^= 1
    path.write_bytes(content)
