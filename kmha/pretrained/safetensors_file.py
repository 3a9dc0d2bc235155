"""Tensors in the safetensors format: the length of a header, the header in JSON, then the numbers.

Read and written by hand: it is short, needs no package, and every refusal can name the file and the tensor.
"""

import functools
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kmha.errors import InputError
from kmha.pretrained.json_file import read_json, shown
from kmha.pretrained.weight_mapping import Tensor

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
# Other names under which weights are published; these are pickles, which can run anything when opened.
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model.pt", "model.pt", "model.pkl")
_LENGTH_BYTES = 8
# As the reference allows: a longer header is no header.
_LONGEST_HEADER = 100_000_000
# bfloat16 is the upper half of a float32, read as an integer.
_NUMBERS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint by name, in one file or in several that an index names.

    Old checkpoints call the weight and bias of a normalisation gamma and beta; here they have the new names.

    Raises:
        InputError: There is no such file, only a pickle, or a file is damaged.
    """
    if (folder / WEIGHTS).exists() or not (folder / INDEX).exists():
        tensors = _one_file(folder)
    else:
        tensors = _several_files(folder)
    return {_new_name(name): tensor for name, tensor in tensors.items()}


def _new_name(name: str) -> str:
    for old, new in ((".gamma", ".weight"), (".beta", ".bias")):
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name


def _one_file(folder: Path) -> dict[str, Tensor]:
    if not (folder / WEIGHTS).exists():
        pickled = next((name for name in _PICKLES if (folder / name).exists()), None)
        given = f"{pickled}, a pickle, which is never opened" if pickled else "none"
        raise InputError(f"{folder}: expected {WEIGHTS}, got {given}")
    return read_safetensors(folder / WEIGHTS)


def _several_files(folder: Path) -> dict[str, Tensor]:
    path = folder / INDEX
    parts = read_json(path).get("weight_map")
    if not isinstance(parts, dict) or not parts:
        raise InputError(f"{path}: weight_map must tell the file of each tensor, got {shown(parts)}")
    files = {}
    for part in dict.fromkeys(map(str, parts.values())):
        # A name with a path in it could point at any file of the reader.
        if part in ("", ".", "..") or set(part) & set("/\\\0"):
            raise InputError(f"{path}: weight_map must name plain files, got {shown(part)}")
        if not (folder / part).exists():
            raise InputError(f"{folder}: expected {part} as {INDEX} says, got none")
        files[part] = read_safetensors(folder / part)
    for name, part in parts.items():
        if name not in files[str(part)]:
            raise InputError(
                f"{folder / str(part)}: expected a tensor {shown(name)} as {INDEX} says, got none"
            )
    return {name: files[str(part)][name] for name, part in parts.items()}


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of one file by name; the header is checked, the numbers are read when they are asked for.

    Raises:
        InputError: The file cannot be read, its header is damaged, or it is not as long as the header says.
    """
    try:
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            if size < _LENGTH_BYTES or length > min(size - _LENGTH_BYTES, _LONGEST_HEADER):
                raise InputError(f"{path}: damaged or cut off: {size} bytes, a header of {length}")
            encoded = file.read(length)
    except OSError as error:
        raise InputError(f"{path}: expected a safetensors file, {error.strerror or error}") from error
    try:
        header = json.loads(encoded, object_pairs_hook=_distinct)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: damaged: the header is not valid JSON: {error}") from error
    if not isinstance(header, dict):
        raise InputError(f"{path}: damaged: the header must be a JSON object, got {type(header).__name__}")
    header.pop("__metadata__", None)
    for name, entry in header.items():
        _check_entry(path, name, entry)
    start, end = _LENGTH_BYTES + length, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begins, ends = entry["data_offsets"]
        if begins != end:
            raise InputError(f"{path}: damaged: tensor {shown(name)} must begin at {end}, got {begins}")
        end = ends
    if start + end != size:
        raise InputError(f"{path}: damaged or cut off: expected {start + end} bytes, got {size}")
    return {
        name: Tensor(
            str(path), tuple(entry["shape"]), functools.partial(_read_numbers, path, name, entry, start)
        )
        for name, entry in header.items()
    }


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a name stands twice")
    return values


def _check_entry(path: Path, name: str, entry: Any) -> None:
    entry = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    good = isinstance(dtype, str) and _is_sizes(shape) and _is_sizes(offsets) and len(offsets) == 2
    if not good or offsets[0] > offsets[1]:
        raise InputError(f"{path}: damaged: tensor {shown(name)} needs dtype, shape and data_offsets")
    # Types that no encoder has are let pass: the tensor may be one that nobody asks for.
    if dtype in _NUMBERS and math.prod(shape) * np.dtype(_NUMBERS[dtype]).itemsize != offsets[1] - offsets[0]:
        raise InputError(
            f"{path}: damaged: tensor {shown(name)}, {dtype} of shape {shape[:8]}, cannot have"
            f" {offsets[1] - offsets[0]} bytes"
        )


def _is_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def _read_numbers(path: Path, name: str, entry: Mapping[str, Any], start: int) -> np.ndarray:
    dtype, shape = entry["dtype"], entry["shape"]
    if dtype not in _NUMBERS:
        raise InputError(f"{path}: tensor {name} must be one of {', '.join(_NUMBERS)}, got {shown(dtype)}")
    count = math.prod(shape)
    try:
        stored = np.fromfile(path, _NUMBERS[dtype], count, offset=start + entry["data_offsets"][0])
    except OSError as error:
        raise InputError(f"{path}: expected a safetensors file, {error.strerror or error}") from error
    if stored.size != count:
        raise InputError(f"{path}: cut off: tensor {name} wants {count} numbers, got {stored.size}")
    if dtype == "BF16":
        stored = (stored.astype("<u4") << 16).view("<f4")
    # What is too large for float32 becomes infinite, which the reader of weights refuses.
    with np.errstate(over="ignore"):
        return stored.reshape(shape).astype(np.float32, copy=False)


def write_safetensors(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Writes float32 tensors as one file that `read_safetensors` and the reference read."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + 4 * tensor.size
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [begin, end]}
    encoded = json.dumps(header, separators=(",", ":")).encode()
    # The reference wants the numbers to begin at a multiple of eight.
    encoded += b" " * (-len(encoded) % _LENGTH_BYTES)
    with open(path, "wb") as file:
        file.write(len(encoded).to_bytes(_LENGTH_BYTES, "little"))
        file.write(encoded)
        for tensor in tensors.values():
            file.write(np.ascontiguousarray(tensor, "<f4").data)
