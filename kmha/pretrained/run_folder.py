"""Reads the encoder of a run folder as a checkpoint, to initialize another training from it."""

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from kmha.bundle.manifest import MANIFEST, MODEL, VOCABULARY, check_files, read_manifest
from kmha.config import EncoderConfig
from kmha.errors import InputError
from kmha.pretrained.checkpoint import Checkpoint
from kmha.pretrained.json_file import shown
from kmha.text.vocabulary import TOKENIZATIONS, Tokenization, Vocabulary


def read_run(folder: Path) -> Checkpoint:
    """Reads the encoder of a run of any task; for a matcher with several granularities the first one.

    Raises:
        InputError: The folder has no bundle, or a file was changed.
    """
    manifest = read_manifest(folder)
    check_files(folder, manifest)
    config = _encoder_config(folder / MODEL)
    vocabulary = Vocabulary.read(folder / VOCABULARY)
    if len(vocabulary) > config.vocabulary_size:
        raise InputError(
            f"{folder / VOCABULARY}: expected at most the model's {config.vocabulary_size} tokens,"
            f" got {len(vocabulary)}"
        )
    tokenization, lower_case = _text_settings(folder / MANIFEST, manifest["text"])
    return Checkpoint(str(folder), config, vocabulary, tokenization, lower_case, lambda: _weights(folder))


def _text_settings(path: Path, text: dict[str, Any]) -> tuple[Tokenization, bool]:
    # For pairs the settings of the texts are one level deeper.
    text = text if "tokenization" in text else next(iter(text.values()), {})
    found = (text.get("tokenization"), text.get("lower_case")) if isinstance(text, dict) else (None, None)
    if found[0] not in TOKENIZATIONS or not isinstance(found[1], bool):
        raise InputError(f"{path}: text must have tokenization and lower_case, got {shown(text)}")
    return found  # pyright: ignore[reportReturnType]


def _encoder_config(path: Path) -> EncoderConfig:
    """The shape of the encoder in the model file, read without Keras."""
    try:
        with zipfile.ZipFile(path) as archive:
            values = json.loads(archive.read("config.json"))["config"]
        encoder: dict[str, Any] = values.get("encoder") or next(iter(values["encoders"].values()))
        # Rounds of cross-attention are not part of the encoder.
        return EncoderConfig(**{**encoder, "round_sizes": ()})
    # The archive may be damaged or contain any JSON.
    except Exception as error:
        raise InputError(f"{path}: expected a model with an encoder, {error}") from error


def _weights(folder: Path) -> dict[str, np.ndarray]:
    from kmha.bundle.bundle import Bundle
    from kmha.pretrained.weights import encoder_variables

    encoder = Bundle.load(folder).model.encoders_of(0)[0]
    return {path: variable.numpy() for path, variable in encoder_variables(encoder).items()}
