"""bundle.json, the manifest of a run folder: task, labels, text settings, and the SHA-256 of each file.

Reading needs no TensorFlow and validates everything: a run folder may come from anywhere.
"""

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from kmha.errors import InputError, shorten
from kmha.input_files import open_input, parse_json, read_input
from kmha.tags import SCHEMES

Result = TypeVar("Result")

FORMAT = 1
# Of float32, as thresholds are compared.
LARGEST = 3.4e38
# How often a run that is being replaced is read, and how long its folder may be missing in between.
ATTEMPTS, MISSING_S = 20, 0.05
MANIFEST, MODEL, VOCABULARY = "bundle.json", "model.keras", "vocab.txt"
# A sample of the validation and training texts, one JSON string a line; optional.
SAMPLE = "sample.jsonl"
# The entry of runs without validation rows, whose sample are training texts.
CROSS_VALIDATED = "cross_validated"
CLASSIFY, MATCH, TAG, MASKED_LM = "classify", "match", "tag", "masked-lm"
TASKS = (CLASSIFY, MATCH, TAG, MASKED_LM)
# The models of the tasks as messages name them.
MODEL_NAMES = {
    CLASSIFY: "a classifier",
    MATCH: "a matcher",
    TAG: "a tagger",
    MASKED_LM: "a masked language model",
}
# The entry that only this task has; it is an attribute of the model.
TASK_ENTRY = {CLASSIFY: "multi_label", MATCH: "target", TAG: "scheme", MASKED_LM: "vocabulary_size"}


def vocabulary_file(index: int, granularity: str = "") -> str:
    """File name of the vocabulary of a granularity; the first one is vocab.txt."""
    return f"vocab.{granularity}.txt" if index else VOCABULARY


def write_manifest(folder: Path, values: dict[str, Any], files: Iterable[str]) -> None:
    """Writes bundle.json: the values, the format, and the hashes of the files."""
    hashes = {name: sha256(folder / name) for name in files}
    manifest = {**values, "format": FORMAT, "files": hashes}
    (folder / MANIFEST).write_text(
        json.dumps(manifest, ensure_ascii=False, indent=2, allow_nan=False) + "\n", "utf-8"
    )


def read_manifest(folder: Path) -> dict[str, Any]:
    """Reads bundle.json of a run folder and validates the entries in `_ENTRIES` and `_OF_TASK`."""
    path = Path(folder) / MANIFEST
    try:
        manifest = parse_json(read_input(path), path)
    except OSError as error:
        raise InputError(
            f"{folder}: expected a run folder with {MANIFEST}, {error.strerror or error}"
        ) from error
    if not isinstance(manifest, dict):
        raise InputError(f"{path}: must be a JSON object, got {type(manifest).__name__}")
    version = manifest.get("format")
    if isinstance(version, int) and version > FORMAT:
        raise InputError(f"{path}: expected bundle format {FORMAT} or older, got {version}; update kmha")
    needed = _ENTRIES | _OF_TASK.get(str(manifest.get("task")), {})
    for name, (expected, is_valid) in (needed | _OPTIONAL).items():
        if name in needed and name not in manifest:
            raise InputError(f"{path}: {name} is missing")
        if name in manifest and not is_valid(manifest[name]):
            raise InputError(f"{path}: {name} must be {expected}, got {_shown(manifest[name])}")
    labels, thresholds = manifest["labels"], manifest["thresholds"]
    if thresholds is not None and len(thresholds) != len(labels):
        raise InputError(
            f"{path}: expected {len(labels)} thresholds, one for each label, got {len(thresholds)}"
        )
    return manifest


def read_consistent(folder: Path, read: Callable[[], Result]) -> Result:
    """Calls a reader of a run folder, and calls it again if it fails and the run was replaced meanwhile."""
    for attempts_left in reversed(range(ATTEMPTS)):
        before = _manifest_bytes(folder)
        try:
            return read()
        except InputError:
            if before is None:
                time.sleep(MISSING_S)
            if not attempts_left or _manifest_bytes(folder) == before:
                raise
    raise AssertionError


@contextlib.contextmanager
def open_bundle(folder: Path) -> Iterator[tuple[dict[str, Any], dict[str, BinaryIO]]]:
    """Opens each file of a run folder once; yields the manifest and the files by name, whose hashes are verified.

    Raises InputError if a file is missing, has no hash in the manifest, or was changed.
    """
    manifest, folder = read_manifest(folder), Path(folder)
    with contextlib.ExitStack() as stack:
        yield manifest, _open_files(folder, manifest, stack)


def _manifest_bytes(folder: Path) -> bytes | None:
    try:
        return read_input(folder / MANIFEST)
    except (OSError, InputError):
        return None


def _open_files(folder: Path, manifest: dict[str, Any], stack: contextlib.ExitStack) -> dict[str, BinaryIO]:
    recorded, files = manifest["files"], {}
    for name in dict.fromkeys((MODEL, VOCABULARY, *recorded)):
        path = folder / name
        if name not in recorded:
            raise InputError(f"{folder / MANIFEST}: files must contain the SHA-256 of {name}, got none")
        try:
            file = stack.enter_context(open_input(path))
        except (OSError, InputError):
            raise InputError(f"{folder}: expected the bundle's file {name}, got none") from None
        actual = hashlib.file_digest(file, "sha256").hexdigest()
        if actual != recorded[name]:
            raise InputError(
                f"{path}: expected SHA-256 {recorded[name][:12]}…, got {actual[:12]}…; the file was changed"
            )
        file.seek(0)
        files[name] = file
    return files


def sha256(path: Path) -> str:
    """SHA-256 of a regular file in hexadecimal."""
    with open_input(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _shown(value: Any) -> str:
    return shorten(json.dumps(value, allow_nan=False))


def _is_names(value: Any) -> bool:
    strings = isinstance(value, list) and all(isinstance(name, str) for name in value)
    return strings and 0 < len(value) == len(set(value))


def _is_thresholds(value: Any) -> bool:
    if value is None:
        return True
    return isinstance(value, list) and all(type(p) in (int, float) and abs(p) < LARGEST for p in value)


def _is_probability(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= 1


def _is_lengths(value: Any) -> bool:
    return isinstance(value, dict) and all(type(n) is int and 0 <= n < LARGEST for n in value.values())


def _is_hashes(value: Any) -> bool:
    """Accepts plain file names only: a path could point at any file of the reader."""
    return isinstance(value, dict) and all(
        name not in ("", ".", "..") and not set("/\\\0") & set(name) and isinstance(hashed, str)
        for name, hashed in value.items()
    )


# Expected value and check of each entry.
_ENTRIES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "format": (f"an integer from 1 to {FORMAT}", lambda value: type(value) is int and 1 <= value),
    "task": (f"one of {', '.join(TASKS)}", lambda value: value in TASKS),
    "labels": ("distinct names", _is_names),
    "thresholds": ("null or finite numbers", _is_thresholds),
    "text": ("an object", lambda value: isinstance(value, dict)),
    "files": ("SHA-256 by file name, which must be plain names", _is_hashes),
}
_OPTIONAL: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "abstain_below": ("a number from 0 to 1", _is_probability),
    "lengths": ("numbers of tokens by percentile", _is_lengths),
    "given_scheme": (f"one of {', '.join(SCHEMES)}", lambda value: value in SCHEMES),
}
_TARGETS = ("binary", "classes", "graded")
_OF_TASK: dict[str, dict[str, tuple[str, Callable[[Any], bool]]]] = {
    CLASSIFY: {TASK_ENTRY[CLASSIFY]: ("true or false", lambda value: isinstance(value, bool))},
    MATCH: {TASK_ENTRY[MATCH]: (f"one of {', '.join(_TARGETS)}", lambda value: value in _TARGETS)},
    TAG: {TASK_ENTRY[TAG]: (f"one of {', '.join(SCHEMES)}", lambda value: value in SCHEMES)},
    MASKED_LM: {
        TASK_ENTRY[MASKED_LM]: ("a number of tokens", lambda value: type(value) is int and value > 0),
        "labels": ("an empty list", lambda value: value == []),
    },
}
