"""Reads and writes tensors in the safetensors format; reading uses the `safetensors` library and is lazy."""

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from kmha.errors import InputError, shown
from kmha.input_files import open_input, read_json
from kmha.pretrained.weight_mapping import Tensor

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
# Other names of published weights. These are pickles, which can run any code when opened.
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model.pt", "model.pt", "model.pkl")
_DTYPES = ("F64", "F32", "F16", "BF16")
_ALIGNMENT = 8


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint by name, from one file or from the files in an index.

    Old checkpoints name the weight and bias of a normalization gamma and beta; the result has the new names.
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
        actual = f"{pickled}, a pickle, which is never opened" if pickled else "none"
        raise InputError(f"{folder}: expected {WEIGHTS}, got {actual}")
    return read_safetensors(folder / WEIGHTS)


def _several_files(folder: Path) -> dict[str, Tensor]:
    path = folder / INDEX
    parts = read_json(path).get("weight_map")
    if not isinstance(parts, dict) or not parts:
        raise InputError(f"{path}: weight_map must have the file of each tensor, got {shown(parts)}")
    files = {}
    for part in dict.fromkeys(map(str, parts.values())):
        # A path could point at any file of the reader.
        if part in ("", ".", "..") or set(part) & set("/\\\0"):
            raise InputError(f"{path}: weight_map must have plain file names, got {shown(part)}")
        if not (folder / part).exists():
            raise InputError(f"{folder}: expected {part} as in {INDEX}, got none")
        files[part] = read_safetensors(folder / part)
    for name, part in parts.items():
        if name not in files[str(part)]:
            raise InputError(f"{folder / str(part)}: expected a tensor {shown(name)} as in {INDEX}, got none")
    return {name: files[str(part)][name] for name, part in parts.items()}


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of one file by name; the header is validated now, the numbers are read on demand."""

    def tensors(file) -> dict[str, Tensor]:
        found = {}
        for name in file.keys():
            shape = tuple(file.get_slice(name).get_shape())
            found[name] = Tensor(str(path), shape, functools.partial(_read_tensor, path, name))
        return found

    return _opened(path, tensors)


def _opened(path: Path, read):
    """The result of a function of the open file; any error of the library becomes an InputError of one line."""
    try:
        # The library would wait for the writer of a pipe.
        open_input(path).close()
        with safe_open(path, "numpy") as file:
            return read(file)
    except SafetensorError as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{path}: damaged or truncated: {reason}") from error
    except OSError as error:
        raise InputError(f"{path}: expected a safetensors file, {error.strerror or error}") from error


def _read_tensor(path: Path, name: str) -> np.ndarray:
    def read(file) -> np.ndarray:
        dtype = file.get_slice(name).get_dtype()
        # Checkpoints may contain other types for tensors that no encoder needs.
        if dtype not in _DTYPES:
            raise InputError(f"{path}: tensor {name} must be one of {', '.join(_DTYPES)}, got {shown(dtype)}")
        # Too large numbers become infinite and are rejected later. The library returns bfloat16 as that of ml_dtypes.
        with np.errstate(over="ignore"):
            return np.asarray(file.get_tensor(name)).astype(np.float32, copy=False)

    return _opened(path, read)


def write_safetensors(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Writes float32 tensors in the order of the mapping, which the library would sort."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + 4 * tensor.size
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [begin, end]}
    encoded = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
    encoded += b" " * (-len(encoded) % _ALIGNMENT)
    with open(path, "wb") as file:
        file.write(len(encoded).to_bytes(8, "little"))
        file.write(encoded)
        for tensor in tensors.values():
            file.write(np.ascontiguousarray(tensor, "<f4").data)
