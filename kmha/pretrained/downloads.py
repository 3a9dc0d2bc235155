"""Downloads checkpoints from the Hugging Face hub, and presets of KerasHub from Kaggle.

Downloads only data files, and config.json first, so that an unsupported checkpoint is not downloaded.
"""

import re
from collections.abc import Callable
from pathlib import Path

from kmha.errors import InputError
from kmha.pretrained.huggingface import read_family
from kmha.pretrained.json_file import read_json
from kmha.pretrained.keras_hub_preset import class_of, is_keras_hub

CONFIG = "config.json"
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


def is_hub_name(name: str) -> bool:
    """Whether the name has the form owner/name, and owner is not a local folder."""
    return bool(re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name)) and not Path(name.split("/")[0]).exists()


def download_hub(name: str) -> Path:
    """The local folder of a checkpoint on the Hugging Face hub, downloaded if it is not in the cache.

    Raises:
        InputError: The download failed, or the architecture is unknown.
    """
    import huggingface_hub

    def fetch(files: list[str]) -> Path:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=files))

    folder = _downloaded(name, "the Hugging Face hub", lambda: fetch([CONFIG]))
    values = read_json(folder / CONFIG)
    check = class_of if is_keras_hub(values) else read_family
    check(folder / CONFIG, values)
    return _downloaded(name, "the Hugging Face hub", lambda: fetch(list(SAFE_FILES)))


def download_preset(name: str, handle: str) -> Path:
    """The local folder of a KerasHub preset, downloaded if it is not in the cache; raises InputError."""
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
