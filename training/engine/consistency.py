"""Checks that all workers have the same versions, settings, rows and initial weights."""

import hashlib
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from kmha.bundle.manifest import MANIFEST, sha256
from kmha.errors import InputError
from training.config.config import FitConfig, differences, settings
from training.data.load import Data
from training.distributed.coordinator import Coordinator

_PACKAGES = ("kmha", "tensorflow", "tensorflow-text", "keras", "numpy", "scikit-learn", "tokenizers")
_SOURCES = ("kmha", "training")
# Paths may differ between machines; the other settings concern the chief worker only.
_NOT_SHARED = {
    "": ("out", "overwrite", "resume", "tensorboard", "report"),
    "data": ("train", "validation", "test", "tfds_dir"),
    "distill": ("texts", "cache"),
}
_FILES = (("text", "vocabulary"), ("encoder", "vectors"), ("encoder", "pretrained"), ("distill", "teacher"))


def versions() -> dict[str, str]:
    """Versions of the libraries that compute, and a digest of this project's source files."""
    root, digest = Path(__file__).parents[2], hashlib.sha256()
    for path in sorted(path for package in _SOURCES for path in (root / package).rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    installed = {each.metadata["Name"]: each.version for each in metadata.distributions()}
    found = {name: installed[name] for name in _PACKAGES if name in installed}
    return found | {"source files of kmha": digest.hexdigest()[:12]}


def shared_settings(config: FitConfig) -> dict[str, Any]:
    """The settings that must be equal on all workers: without paths, and with digests in place of input files."""
    found = settings(config)
    for section, names in _NOT_SHARED.items():
        for name in names:
            (found[section] if section else found).pop(name, None)
    for section, name in _FILES:
        if not (value := found[section].get(name)):
            continue
        path = Path(str(value))
        # The manifest of a run folder has the digests of all its files.
        path = path / MANIFEST if path.is_dir() else path
        if path.is_file():
            found[section][name] = f"a file of digest {sha256(path)[:12]}"
    return found


def row_digests(data: Data) -> dict[str, dict[str, Any]]:
    """For each part of the data its name and a digest of its texts, labels and file."""
    found = {}
    for name, part in data.parts.items():
        digest = hashlib.sha256(part.examples.digests[part.rows].tobytes())
        digest.update(repr(data.labels).encode())
        origin = data.origins.get(name, data.origins["train"])
        found[name] = {"name": origin["name"], "digest": f"{digest.hexdigest()} {origin['sha256']}"}
    return found


def check_same_settings(coordinator: Coordinator, config: FitConfig, devices: int) -> None:
    """Compares versions, settings and devices with those of the chief worker; raises InputError on all workers."""
    values = {"versions": versions(), "settings": shared_settings(config), "devices": devices}
    chief, *others = coordinator.all_gather("settings", values)
    for index, other in enumerate(others, 1):
        for name, version in chief["versions"].items():
            if other["versions"].get(name) != version:
                raise _mismatch(index, f"{name} {version}", other["versions"].get(name, "none"))
        if found := differences(chief["settings"], other["settings"]):
            raise _mismatch(index, *found.rsplit(", got ", 1))
        if other["devices"] != chief["devices"]:
            raise _mismatch(index, f"{chief['devices']} devices", other["devices"])


def check_same_rows(coordinator: Coordinator, data: Data) -> None:
    """Compares the rows with those of the chief worker; raises InputError on all workers if they differ."""
    chief, *others = coordinator.all_gather("rows", row_digests(data))
    for index, other in enumerate(others, 1):
        for part, rows in chief.items():
            if other.get(part, {}).get("digest") != rows["digest"]:
                actual = f"different rows in {other[part]['name']}" if part in other else "none"
                raise _mismatch(index, f"the {part} rows of {rows['name']}", actual)


def check_same_weights(coordinator: Coordinator, variables: Sequence[Any]) -> None:
    """Compares the initial weights with those of the chief worker; raises InputError on all workers if they differ."""
    if coordinator.count == 1:
        return
    own = [[each.path, hashlib.sha256(np.asarray(each.value).tobytes()).hexdigest()] for each in variables]
    chief, *others = coordinator.all_gather("weights", own)
    for index, other in enumerate(others, 1):
        for (path, digest), (_, actual) in zip(chief, other, strict=True):
            if digest != actual:
                raise _mismatch(index, f"the weights of {path}", "different weights")


def _mismatch(index: int, expected: str, actual: Any) -> InputError:
    return InputError(f"worker {index}: expected {expected} as on worker 0, got {actual}")
