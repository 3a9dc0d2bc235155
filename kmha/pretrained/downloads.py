"""Checkpoints that lie elsewhere: a name on the Hugging Face hub, a preset that KerasHub keeps on Kaggle.

Only files that are data are fetched, and config.json first: what cannot be used is not downloaded.
"""

import re
from collections.abc import Callable
from pathlib import Path

from kmha.errors import InputError
from kmha.pretrained.huggingface import read_family
from kmha.pretrained.json_file import read_json
from kmha.pretrained.keras_hub_preset import class_of, is_keras_hub

CONFIG = "config.json"
# Neither pickles nor code: weights, tokenizer and settings, as Hugging Face and KerasHub name them.
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
    """Whether it has the form owner/name, and the owner is not a folder here."""
    return bool(re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name)) and not Path(name.split("/")[0]).exists()


def download_hub(name: str) -> Path:
    """The folder of a name on the Hugging Face hub, from the local cache or fetched.

    Raises:
        InputError: It is not to be had, or is of an architecture that is not known.
    """
    import huggingface_hub

    def fetch(files: list[str]) -> Path:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=files))

    folder = _fetched(name, "the Hugging Face hub", lambda: fetch([CONFIG]))
    values = read_json(folder / CONFIG)
    check = class_of if is_keras_hub(values) else read_family
    check(folder / CONFIG, values)
    return _fetched(name, "the Hugging Face hub", lambda: fetch(list(SAFE_FILES)))


def download_preset(name: str, handle: str) -> Path:
    """The folder of a preset of KerasHub, from the local cache or fetched; raises InputError."""
    try:
        import kagglehub
    except ImportError as error:
        raise InputError(f"{name}: expected the installed package kagglehub, got none") from error
    return _fetched(name, "Kaggle", lambda: Path(kagglehub.model_download(handle.removeprefix("kaggle://"))))


def _fetched(name: str, place: str, fetch: Callable[[], Path]) -> Path:
    try:
        return fetch()
    # The clients answer a missing network, an unknown name or a lock with errors of any kind.
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
        raise InputError(
            f"{name}: no such folder here, and it cannot be fetched from {place}: {reason[:200]}"
        ) from error
