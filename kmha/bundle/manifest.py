"""bundle.json: what a run folder says about itself, and whether its files are the ones it names.

Read without TensorFlow, and with distrust: a run folder may come from anywhere.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from kmha.errors import InputError
from kmha.tags import SCHEMES

FORMAT = 1
MANIFEST, MODEL, VOCABULARY = "bundle.json", "model.keras", "vocab.txt"
# A sample of the training texts, one JSON string a line; a bundle may lack it.
SAMPLE = "sample.jsonl"
CLASSIFY, MATCH, TAG, MASKED_LM = "classify", "match", "tag", "masked-lm"
TASKS = (CLASSIFY, MATCH, TAG, MASKED_LM)
MODEL_NAMES = {
    CLASSIFY: "a classifier",
    MATCH: "a matcher",
    TAG: "a tagger",
    MASKED_LM: "a masked language model",
}
# What each task says of its model beside its labels.
KINDS = {CLASSIFY: "multi_label", MATCH: "target", TAG: "scheme", MASKED_LM: "vocabulary_size"}


def vocabulary_file(index: int, granularity: str = "") -> str:
    """Name of the vocabulary of a granularity, the first of which has the plain name."""
    return f"vocab.{granularity}.txt" if index else VOCABULARY


def write_manifest(folder: Path, values: dict[str, Any], files: Iterable[str]) -> None:
    """Writes bundle.json: the format, the values given, and the hashes of the files named."""
    hashes = {name: sha256(folder / name) for name in files}
    manifest = {**values, "format": FORMAT, "files": hashes}
    (folder / MANIFEST).write_text(json.dumps(manifest, ensure_ascii=False, indent=2) + "\n", "utf-8")


def read_manifest(folder: Path) -> dict[str, Any]:
    """bundle.json of a run folder.

    Returns:
        All entries; "task" (one of `TASKS`), "labels" (distinct strings), "thresholds" (as many numbers as labels, or
        None), "text" (dict), "files" (SHA-256 by plain file name), of a classifier "multi_label" (bool), of a matcher
        "target" (str), of a tagger "scheme" (str) and of a masked language model "vocabulary_size" (int) have these
        types, and so has "abstain_below" (from 0 to 1), which may be missing. A masked language model has no labels.

    Raises:
        InputError: It is missing or damaged, its format is newer than this code, or an entry is not as above.
    """
    path = Path(folder) / MANIFEST
    try:
        manifest = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InputError(
            f"{folder}: expected a run folder with {MANIFEST}, {error.strerror or error}"
        ) from error
    except ValueError as error:
        raise InputError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(manifest, dict):
        raise InputError(f"{path}: must be a JSON object, got {type(manifest).__name__}")
    given = manifest.get("format")
    if isinstance(given, int) and given > FORMAT:
        raise InputError(f"{path}: expected bundle format {FORMAT} or older, got {given}; update kmha")
    for name, (expected, holds) in (_ENTRIES | _OF_TASK.get(str(manifest.get("task")), {})).items():
        if name not in manifest:
            raise InputError(f"{path}: {name} is missing")
        if not holds(manifest[name]):
            raise InputError(f"{path}: {name} must be {expected}, got {_shown(manifest[name])}")
    if not _is_probability(manifest.get("abstain_below", 0.0)):
        given = _shown(manifest["abstain_below"])
        raise InputError(f"{path}: abstain_below must be a number from 0 to 1, got {given}")
    labels, thresholds = manifest["labels"], manifest["thresholds"]
    if thresholds is not None and len(thresholds) != len(labels):
        raise InputError(f"{path}: expected {len(labels)} thresholds, one a label, got {len(thresholds)}")
    return manifest


def check_files(folder: Path, manifest: dict[str, Any]) -> None:
    """Whether the files of a run folder are the ones that its manifest records.

    Raises:
        InputError: One is missing, has no hash or another one.
    """
    recorded = manifest["files"]
    for name in dict.fromkeys((MODEL, VOCABULARY, *recorded)):
        path = folder / name
        if name not in recorded:
            raise InputError(f"{folder / MANIFEST}: files must hold the SHA-256 of {name}, got none")
        if not path.is_file():
            raise InputError(f"{folder}: expected the bundle's file {name}, got none")
        found = sha256(path)
        if found != recorded[name]:
            raise InputError(
                f"{path}: expected SHA-256 {recorded[name][:12]}…, got {found[:12]}…; the file was changed"
            )


def sha256(path: Path) -> str:
    """The file's SHA-256 in hexadecimal; read in blocks."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _is_names(value: Any) -> bool:
    strings = isinstance(value, list) and all(isinstance(name, str) for name in value)
    return strings and 0 < len(value) == len(set(value))


def _is_thresholds(value: Any) -> bool:
    if value is None:
        return True
    return isinstance(value, list) and all(type(p) in (int, float) and math.isfinite(p) for p in value)


def _is_probability(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= 1


def _is_hashes(value: Any) -> bool:
    """Plain file names only: a name with a path in it could point at any file of the reader."""
    return isinstance(value, dict) and all(
        name not in ("", ".", "..") and not set("/\\\0") & set(name) and isinstance(hashed, str)
        for name, hashed in value.items()
    )


# Of each entry, what it must be in words and as a check.
_ENTRIES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "format": (f"an integer from 1 to {FORMAT}", lambda value: type(value) is int and 1 <= value),
    "task": (f"one of {', '.join(TASKS)}", lambda value: value in TASKS),
    "labels": ("distinct names", _is_names),
    "thresholds": ("null or finite numbers", _is_thresholds),
    "text": ("an object", lambda value: isinstance(value, dict)),
    "files": ("SHA-256 by file name, which must be plain names", _is_hashes),
}
_TARGETS = ("binary", "classes", "graded")
_OF_TASK: dict[str, dict[str, tuple[str, Callable[[Any], bool]]]] = {
    CLASSIFY: {KINDS[CLASSIFY]: ("true or false", lambda value: isinstance(value, bool))},
    MATCH: {KINDS[MATCH]: (f"one of {', '.join(_TARGETS)}", lambda value: value in _TARGETS)},
    TAG: {KINDS[TAG]: (f"one of {', '.join(SCHEMES)}", lambda value: value in SCHEMES)},
    MASKED_LM: {
        KINDS[MASKED_LM]: ("a number of tokens", lambda value: type(value) is int and value > 0),
        "labels": ("an empty list", lambda value: value == []),
    },
}
