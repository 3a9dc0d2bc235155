"""What has to be equal on all workers before they train together: versions, settings, rows, weights."""

import hashlib
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from kmha.bundle.manifest import MANIFEST, sha256
from kmha.errors import InputError
from training.cli.config_diff import differences
from training.config.config import FitConfig, settings
from training.data.load import Data
from training.distributed.coordinator import Coordinator

_PACKAGES = ("kmha", "tensorflow", "tensorflow-text", "keras", "numpy", "tokenizers")
_SOURCES = ("kmha", "training")
# Where things stand may differ from machine to machine, and what the chief alone does is its own business.
_PLACES = {
    "": ("out", "overwrite", "resume", "tensorboard", "report"),
    "data": ("train", "validation", "test", "tfds_dir"),
    "distill": ("texts", "cache"),
}
_FILES = (("text", "vocabulary"), ("encoder", "vectors"), ("encoder", "pretrained"), ("distill", "teacher"))


def versions() -> dict[str, str]:
    """Versions of what computes, and a digest of the source files of this project."""
    root, digest = Path(__file__).parents[2], hashlib.sha256()
    for path in sorted(path for package in _SOURCES for path in (root / package).rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    installed = {each.metadata["Name"]: each.version for each in metadata.distributions()}
    found = {name: installed[name] for name in _PACKAGES if name in installed}
    return found | {"source files of kmha": digest.hexdigest()[:12]}


def shared_settings(config: FitConfig) -> dict[str, Any]:
    """The settings that all workers must have: without places, and with digests in place of files that are read."""
    found = settings(config)
    for section, names in _PLACES.items():
        for name in names:
            (found[section] if section else found).pop(name, None)
    for section, name in _FILES:
        if not (given := found[section].get(name)):
            continue
        path = Path(str(given))
        # A run is known by its manifest, which has the digests of all its files.
        path = path / MANIFEST if path.is_dir() else path
        if path.is_file():
            found[section][name] = f"a file of digest {sha256(path)[:12]}"
    return found


def row_digests(data: Data) -> dict[str, dict[str, Any]]:
    """Of each part of the data a digest of its rows: of the file where it is one, of the texts, of the labels."""
    found = {}
    for name, part in data.parts.items():
        digest = hashlib.sha256(part.examples.digests[part.rows].tobytes())
        digest.update(repr(data.labels).encode())
        origin = data.origins.get(name, data.origins["train"])
        found[name] = {"name": origin["name"], "digest": f"{digest.hexdigest()} {origin['sha256']}"}
    return found


def check_same_settings(coordinator: Coordinator, config: FitConfig, devices: int) -> None:
    """Refuses workers of other versions, settings or numbers of devices than the chief's; on all of them.

    Args:
        coordinator: The workers.
        config: All settings of this one.
        devices: On which this worker computes.

    Raises:
        InputError: Names the worker and what differs.
    """
    facts = {"versions": versions(), "settings": shared_settings(config), "devices": devices}
    chief, *others = coordinator.all_gather("settings", facts)
    for index, other in enumerate(others, 1):
        for name, version in chief["versions"].items():
            if other["versions"].get(name) != version:
                raise _differs(index, f"{name} {version}", other["versions"].get(name, "none"))
        if found := differences(chief["settings"], other["settings"]):
            expected, given = found.rsplit(", got ", 1)
            raise _differs(index, expected, given)
        if other["devices"] != chief["devices"]:
            raise _differs(index, f"{chief['devices']} devices", other["devices"])


def check_same_rows(coordinator: Coordinator, data: Data) -> None:
    """Refuses workers that read other rows than the chief; raises InputError, which names the part, on all of them."""
    chief, *others = coordinator.all_gather("rows", row_digests(data))
    for index, other in enumerate(others, 1):
        for part, rows in chief.items():
            if other.get(part, {}).get("digest") != rows["digest"]:
                given = other[part]["name"] if part in other else "none"
                raise _differs(index, f"the {part} rows of {rows['name']}", f"other ones in {given}")


def check_same_weights(coordinator: Coordinator, variables: Sequence[Any]) -> None:
    """Refuses workers that begin with other weights than the chief; raises InputError, which names them, on all.

    Args:
        coordinator: The workers.
        variables: Keras variables, of which each has a path.
    """
    if coordinator.count == 1:
        return
    own = [[each.path, hashlib.sha256(np.asarray(each.value).tobytes()).hexdigest()] for each in variables]
    chief, *others = coordinator.all_gather("weights", own)
    for index, other in enumerate(others, 1):
        for (path, digest), (_, given) in zip(chief, other, strict=True):
            if digest != given:
                raise _differs(index, f"the weights of {path}", "others")


def _differs(index: int, expected: str, given: Any) -> InputError:
    return InputError(f"worker {index}: expected {expected} as worker 0 has, got {given}")
