"""Reads model.keras: checks the file before Keras builds anything, and every weight afterwards."""

import collections
import contextlib
import hashlib
import io
import math
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import keras
import numpy as np

from kmha.bundle.manifest import MODEL
from kmha.config import EncoderConfig
from kmha.errors import InputError
from kmha.input_files import parse_json
from kmha.layers.initial_values import zeros_at_first

CONFIG, WEIGHTS = "config.json", "model.weights.h5"
_ENTRIES = {"metadata.json", CONFIG, WEIGHTS}
# Keras does not compress what it writes.
_MOST_GROWTH, _FREE_BYTES = 8, 1 << 20
# Sizes up to this one, such as an id or a maximum length, need no weights.
_FREE_SIZE = 1 << 16
# Objects that the configuration of a model may contain.
_NESTED_CLASSES = {"DTypePolicy", "Policy"}


def read_model(file: BinaryIO, path: Path, kind: type) -> Any:
    """Loads a model of a class.

    Args:
        file: The opened file, whose hash was verified.
        path: Of the file, for error messages: another file may be there now.
        kind: The class of the model.

    Raises:
        InputError: The file is damaged, declares sizes that do not fit its weights, contains another class or code, or
            the model has not exactly the weights of `file`, all of them finite.
    """
    try:
        weights = _checked_weights(file, kind)
        with _named(file) as name, zeros_at_first():
            model = keras.saving.load_model(name, compile=False, safe_mode=True)
        if not isinstance(model, kind):
            raise InputError(f"got {type(model).__name__}")
        _check_weights(model, weights)
    # Keras raises errors of many types for damaged files.
    except (Exception, RecursionError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(f"{path}: expected a saved {kind.__name__}, {reason}") from error
    return model


@contextlib.contextmanager
def _named(file: BinaryIO) -> Iterator[Path]:
    """A name of an open file, which Keras can open again: the file at its path may be another one now."""
    with tempfile.TemporaryDirectory(prefix="kmha-") as folder:
        link = Path(folder, MODEL)
        link.symlink_to(f"/dev/fd/{file.fileno()}")
        yield link


def _checked_weights(file: BinaryIO, kind: type) -> h5py.File:
    """The weights in a model file, whose sizes and classes are checked."""
    packed = file.seek(0, io.SEEK_END)
    with zipfile.ZipFile(file) as archive:
        names = [entry.filename for entry in archive.infolist()]
        if len(names) != len(set(names)) or not {CONFIG, WEIGHTS} <= set(names) <= _ENTRIES:
            raise InputError(f"got an archive of {', '.join(sorted(names)[:5]) or 'nothing'}")
        _check_growth(packed, sum(entry.file_size for entry in archive.infolist()))
        config, content = parse_json(archive.read(CONFIG), CONFIG), archive.read(WEIGHTS)
    weights = h5py.File(io.BytesIO(content), "r")
    datasets = dict(_datasets(weights))
    _check_growth(len(content), sum(each.nbytes for each in datasets.values()))
    if not isinstance(config, dict) or config.get("class_name") != kind.__name__:
        found = [name for name in dict.fromkeys(map(str, _classes(config))) if name not in _NESTED_CLASSES]
        raise InputError(f"got {', '.join(found[:5]) or 'no class'}")
    model = {name: value for name, value in config.items() if name not in ("class_name", "compile_config")}
    if others := sorted({str(name) for name in _classes(model)} - _NESTED_CLASSES):
        raise InputError(f"got one with the classes {', '.join(others[:5])}")
    _check_sizes(model.get("config"), sum(each.size for each in datasets.values()), len(datasets))
    return weights


def _check_growth(packed: int, unpacked: int) -> None:
    if unpacked > _MOST_GROWTH * packed + _FREE_BYTES:
        raise InputError(f"got {packed:,} bytes that unpack to {unpacked:,}")


def _datasets(weights: h5py.File) -> Iterator[tuple[str, h5py.Dataset]]:
    found: list[tuple[str, h5py.Dataset]] = []
    weights.visititems(
        lambda name, each: found.append((name, each)) if isinstance(each, h5py.Dataset) else None
    )
    yield from found


def _classes(value: Any) -> Iterator[Any]:
    """The class names in a serialized Keras object."""
    if isinstance(value, dict):
        if "class_name" in value:
            yield value["class_name"]
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from _classes(each)


def _numbers(value: Any) -> Iterator[int]:
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _numbers(each)
    elif type(value) is int:
        yield value


def _check_sizes(config: Any, num_values: int, num_weights: int) -> None:
    """Raises InputError if a configuration needs more weights than the file has."""
    largest = max(_numbers(config), default=0)
    if largest > max(num_values, _FREE_SIZE):
        raise InputError(f"got a size of {largest:,} and {num_values:,} numbers")
    encoders = config.get("encoders")
    for values in [config.get("encoder"), *(encoders.values() if isinstance(encoders, dict) else ())]:
        if not isinstance(values, dict):
            continue
        encoder = EncoderConfig(**values)
        needed = encoder.least_weights
        if needed > num_values or encoder.num_layers > num_weights:
            raise InputError(f"got an encoder of {needed:,} numbers or more, and {num_values:,} numbers")


def _check_weights(model: Any, weights: h5py.File) -> None:
    """Raises InputError unless the weights of a model are those of its file, each once.

    Keras does not read the weights of a layer that is not built. States of random generators are not saved.
    """
    saved = {name: each for name, each in _datasets(weights)}
    expected = collections.Counter(_digest(_array(each), name) for name, each in saved.items())
    found = collections.Counter(
        _digest(keras.ops.convert_to_numpy(each), each.path) for each in model.weights
    )
    if expected != found:
        unread = sum((expected - found).values())
        initial = sum((found - expected).values())
        raise InputError(f"got one of which {unread} weights were not read and {initial} are not in the file")


def _array(dataset: h5py.Dataset) -> np.ndarray:
    # Keras writes bfloat16 as two bytes of raw data, and its name as an attribute.
    if dataset.attrs.get("dtype") == "bfloat16":
        return np.asarray(dataset[()]).view(np.uint16).astype(np.uint32).__lshift__(16).view(np.float32)
    return np.asarray(dataset[()])


def _digest(values: np.ndarray, name: str) -> tuple[tuple[int, ...], bytes]:
    """Shape and hash of values; those of a file may have another type than those of a model."""
    numbers = np.ascontiguousarray(values, np.float32)
    if not math.isfinite(float(np.sum(numbers, dtype=np.float64))):
        raise InputError(f"got NaN or infinity in {name}")
    return values.shape, hashlib.sha256(numbers.data).digest()
