"""Runs and exports that many tests read, made once on disk and shared by the test processes.

An artifact is keyed by its name and by the digest of the source code: a change of the code makes it anew. Tests that
write into a stored folder copy it first.
"""

import contextlib
import fcntl
import functools
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.command_runs import ROOT, Outcome, call

STORE = ROOT / "build" / "test-artifacts"
SOURCES = ("kmha", "training", "export", "tests")
SUFFIXES = (".py", ".html", ".css", ".js")
COMPLETE = "complete.json"
# The run of an exported file, next to it.
RUN = "run"


@functools.cache
def source_digest() -> str:
    """Of all code that can change an artifact, and of the versions of the libraries."""
    digest = hashlib.sha256((ROOT / "constraints.txt").read_bytes())
    paths = (path for folder in SOURCES for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES)
    for path in sorted(paths):
        # Of the tests only the modules that make artifacts matter, not the tests themselves.
        if not path.name.startswith("test_"):
            digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def stored(name: str, make: Callable[[Path], Any]) -> tuple[Path, Any]:
    """A folder made by `make`, in this process or another one, and what `make` returned.

    Args:
        name: Of the artifact, unique among all tests.
        make: Fills the empty folder that it receives; returns JSON values.
    """
    root = STORE / source_digest()
    folder, complete = root / name, root / f"{name}.{COMPLETE}"
    with _locked(root / f"{name}.lock"):
        if not complete.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            value = make(folder)
            partial = complete.with_suffix(".partial")
            partial.write_text(json.dumps(value))
            partial.replace(complete)
        return folder, json.loads(complete.read_text())


def stored_call(
    name: str, main: Callable[..., int], prepare: Callable[[Path], list[str]]
) -> tuple[Path, Outcome]:
    """A folder with what a command wrote there, and how the command ended.

    Args:
        name: Of the artifact.
        main: The command.
        prepare: Writes the command's input into the folder and returns its arguments.
    """

    def make(folder: Path) -> list:
        outcome = call(main, *prepare(folder))
        assert outcome.status == 0, outcome.err
        return [outcome.status, outcome.out, outcome.err]

    folder, values = stored(name, make)
    return folder, Outcome(*values)


class ExportedFiles(dict[str, Path]):
    """A file of each kind of model, written by an export's command when a test needs it. Tests only read them."""

    def __init__(self, name: str, suffix: str, bundle_of: Callable, main: Callable, flags: Callable):
        """`name` is of the stored artifacts; `flags` returns those of a kind."""
        self._settings = name, suffix, bundle_of, main, flags

    def __missing__(self, kind: str) -> Path:
        name, suffix, bundle_of, main, flags = self._settings
        file = f"model{suffix}"

        def export(folder: Path) -> None:
            bundle_of(kind).save(folder / RUN)
            outcome = call(main, folder / RUN, folder / file, *flags(kind))
            assert (outcome.status, outcome.out) == (0, f"{folder / file}\n"), outcome.err

        self[kind] = stored(f"{name} {kind}{suffix}", export)[0] / file
        return self[kind]


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def remove_outdated() -> None:
    """Removes the artifacts of other states of the source code."""
    if STORE.is_dir():
        for folder in STORE.iterdir():
            if folder.name != source_digest():
                shutil.rmtree(folder, ignore_errors=True)
