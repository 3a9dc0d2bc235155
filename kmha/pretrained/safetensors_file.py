"""Tensors in the safetensors format, in one file or in several with an index."""

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np

from kmha.errors import InputError

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
# Other names under which weights are published; these are pickles, which can run anything when opened.
_PICKLES = ("pytorch_model.bin", "pytorch_model.pt", "model.pt", "model.pkl")


def read_tensors(folder: Path) -> dict[str, Callable[[], np.ndarray]]:
    """The tensors of a checkpoint by name, each read when it is asked for.

    Raises:
        InputError: There is no such file, only a pickle, or it is damaged; or the library is not installed.
    """
    path = folder / WEIGHTS
    if not path.is_file():
        pickled = next((name for name in _PICKLES if (folder / name).exists()), None)
        given = f"{pickled}, a pickle, which is never opened" if pickled else "none"
        raise InputError(f"{folder}: wanted {WEIGHTS}, given {given}")
    try:
        import safetensors
    except ImportError as error:
        raise InputError(
            f"{path}: wanted the library safetensors to read it; pip install 'kmha[pretrained]'"
        ) from error
    try:
        file = safetensors.safe_open(path, framework="np")
        names = list(file.keys())
    except (safetensors.SafetensorError, OSError) as error:
        raise InputError(f"{path}: damaged or cut off: {error}") from error
    return {
        name.replace(".gamma", ".weight").replace(".beta", ".bias"): functools.partial(
            _tensor, file, path, name
        )
        for name in names
    }


def _tensor(file, path: Path, name: str) -> np.ndarray:
    import safetensors

    try:
        return file.get_tensor(name)
    except (safetensors.SafetensorError, TypeError, ValueError) as error:
        raise InputError(f"{path}: tensor {name} cannot be read: {error}") from error
