"""Finds a pretrained encoder by short name, in a folder, or on a hub."""

import os
from pathlib import Path

from kmha.bundle.manifest import MANIFEST
from kmha.errors import InputError
from kmha.pretrained.checkpoint import Checkpoint
from kmha.pretrained.downloads import download_hub, download_preset, is_hub_name
from kmha.pretrained.huggingface import CONFIG, read_huggingface
from kmha.pretrained.installed import PACKAGES, read_installed
from kmha.pretrained.json_file import read_json
from kmha.pretrained.keras_hub_preset import is_keras_hub, preset_handle, read_keras_hub
from kmha.pretrained.tensorflow_checkpoint import CONFIG as FIRST_CONFIG
from kmha.pretrained.tensorflow_checkpoint import read_tensorflow


def find_checkpoint(name: str) -> Checkpoint:
    """Finds and reads a checkpoint.

    Args:
        name: minilm; a run folder; a folder in the layout of Hugging Face, KerasHub or BERT's first release; a KerasHub
            preset; or owner/name on the Hugging Face hub. Only the last two use the network, and only if no such
            folder exists.

    Raises:
        InputError: There is no such checkpoint, or it cannot be used.
    """
    if name in PACKAGES:
        return read_installed(name)
    # Unlike Path.exists, this accepts names that are invalid for files.
    if os.path.exists(name):
        return _read_folder(Path(name))
    if is_hub_name(name):
        return _read_folder(download_hub(name))
    handle = preset_handle(name)
    if handle is not None:
        return _read_folder(download_preset(name, handle))
    raise InputError(
        f"{name}: expected {', '.join(PACKAGES)}, a folder with a checkpoint, a preset of KerasHub or owner/name on"
        " the Hugging Face hub, got none of them: no such folder, no such preset"
    )


def _read_folder(folder: Path) -> Checkpoint:
    if (folder / MANIFEST).is_file():
        from kmha.pretrained.run_folder import read_run

        return read_run(folder)
    if (folder / CONFIG).exists():
        preset = is_keras_hub(read_json(folder / CONFIG))
        return read_keras_hub(folder) if preset else read_huggingface(folder)
    if (folder / FIRST_CONFIG).exists():
        return read_tensorflow(folder)
    actual = f"a folder without {CONFIG} and {MANIFEST}" if folder.is_dir() else "a file"
    raise InputError(f"{folder}: expected a folder with a checkpoint, got {actual}")
