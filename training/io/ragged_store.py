"""Stores arrays of different lengths on disk and reads them by row.

A store consists of `<path>` (concatenated elements), `<path>.lengths.npy` (int32 [rows]), `<path>.offsets.npy` (int64
[rows], first element of each row) and `<path>.json` (dtype), which is written last. Memory holds lengths and offsets,
12 bytes per row. Elements are read with `pread`: it needs no lock, and memory-mapped pages would count as process
memory.
"""

import contextlib
import json
import os
import weakref
from array import array
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import DTypeLike

from training.io.disk import named

_WRITE_BUFFER_BYTES = 1 << 20
_MAX_LENGTH = int(np.iinfo(np.int32).max)


class RaggedStoreWriter:
    """Writes a store row by row, replacing an older one; as a context manager, removes its data file after an error."""

    def __init__(self, path: Path, dtype: DTypeLike) -> None:
        self._path = path
        self._dtype = np.dtype(dtype)
        self._lengths = array("i")
        for suffix in ("json", "lengths.npy", "offsets.npy"):
            _sibling(path, suffix).unlink(missing_ok=True)
        self._file = open(path, "wb", buffering=_WRITE_BUFFER_BYTES)

    def append(self, row: np.ndarray) -> None:
        """Adds one row: a 1-D array, cast to the dtype of the store."""
        self.extend(row, np.array([len(row)]))

    def extend(self, flat: np.ndarray, lengths: np.ndarray) -> None:
        """Adds many rows at once: their concatenated elements, cast to the dtype of the store, and their lengths.

        Raises ValueError if the lengths do not sum to the number of elements, or a length is outside [0, 2**31 - 1].
        """
        if flat.ndim != 1 or int(lengths.sum()) != flat.size:
            raise ValueError(f"lengths add up to {int(lengths.sum())}, elements given: shape {flat.shape}")
        if lengths.size and (lengths.min() < 0 or lengths.max() > _MAX_LENGTH):
            raise ValueError(f"expected lengths in [0, {_MAX_LENGTH}], got {lengths.min()}..{lengths.max()}")
        with named(self._path):
            self._file.write(np.ascontiguousarray(flat, self._dtype).data)
        self._lengths.frombytes(np.ascontiguousarray(lengths, np.int32).tobytes())

    def close(self) -> "RaggedStore":
        """Writes the index and opens the finished store; can be called again."""
        self._finish()
        return RaggedStore.open(self._path)

    def _finish(self) -> None:
        if self._file.closed:
            return
        with named(self._path):
            self._file.close()
        lengths = np.array(self._lengths, np.int32)
        offsets = np.zeros(len(lengths), np.int64)
        np.cumsum(lengths[:-1], dtype=np.int64, out=offsets[1:])
        np.save(_sibling(self._path, "lengths.npy"), lengths)
        np.save(_sibling(self._path, "offsets.npy"), offsets)
        index = {"dtype": self._dtype.str, "elements": int(lengths.sum(dtype=np.int64))}
        _sibling(self._path, "json").write_text(json.dumps(index, allow_nan=False), encoding="utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._finish()
        else:
            # On a full disk, flushing the buffer fails again.
            with contextlib.suppress(OSError):
                self._file.close()
            self._path.unlink(missing_ok=True)


class RaggedStore:
    """A finished store; rows can be read in any order and from any thread. `lengths` [rows] are int32."""

    def __init__(self, path: Path, dtype: np.dtype, lengths: np.ndarray, offsets: np.ndarray) -> None:
        self.dtype = dtype
        self.lengths = lengths
        self._offsets = offsets
        self._descriptor = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._descriptor)

    @classmethod
    def open(cls, path: Path) -> "RaggedStore":
        """Opens the store whose data file is `path`.

        Raises FileNotFoundError if it is missing or incomplete, ValueError if the file does not have the recorded
        size.
        """
        index = json.loads(_sibling(path, "json").read_text(encoding="utf-8"))
        dtype = np.dtype(index["dtype"])
        expected, given = index["elements"] * dtype.itemsize, path.stat().st_size
        if expected != given:
            raise ValueError(f"{path}: expected {expected} bytes, got {given}")
        lengths = np.load(_sibling(path, "lengths.npy"), allow_pickle=False)
        offsets = np.load(_sibling(path, "offsets.npy"), allow_pickle=False)
        return cls(path, dtype, lengths, offsets)

    def __len__(self) -> int:
        return len(self.lengths)

    def read(self, row: int) -> np.ndarray:
        """Reads one row, 1-D [lengths[row]]; raises IndexError for an invalid or negative row."""
        return self.gather(np.array([row]))[0]

    def gather(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Reads rows [R], which may repeat: their concatenated elements in this order, and their lengths, int32 [R].

        Raises IndexError for a row that does not exist; negative indices are not supported.
        """
        rows = np.asarray(rows)
        lengths = self.lengths[rows] if rows.size else np.zeros(0, np.int32)
        flat = np.empty(int(lengths.sum(dtype=np.int64)), self.dtype)
        if not rows.size:
            return flat, lengths
        if rows.min() < 0:
            raise IndexError(f"expected row numbers from 0, got {rows.min()}")
        # Consecutive rows are adjacent in the file: one read call per run.
        starts = np.flatnonzero(np.diff(rows, prepend=rows[0] - 2) != 1)
        run_bytes = np.add.reduceat(lengths, starts, dtype=np.int64) * self.dtype.itemsize
        positions = self._offsets[rows[starts]] * self.dtype.itemsize
        view = flat.view(np.uint8).data
        begin = 0
        for size, position in zip(run_bytes.tolist(), positions.tolist(), strict=True):
            self._read_into(view[begin : begin + size], position)
            begin += size
        return flat, lengths

    def _read_into(self, view: memoryview, position: int) -> None:
        while view:
            count = os.preadv(self._descriptor, [view], position)
            if not count:
                raise OSError(f"the store ends {len(view)} bytes too early")
            view, position = view[count:], position + count


def _sibling(path: Path, suffix: str) -> Path:
    return path.with_name(f"{path.name}.{suffix}")


def concatenate_ranges(firsts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The numbers from `firsts[i]` to `firsts[i] + counts[i] - 1` for each i; integers [sum(counts)]."""
    return np.arange(int(counts.sum())) + np.repeat(firsts - np.cumsum(counts) + counts, counts)
