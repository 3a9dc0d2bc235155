"""Recognizes the format of an exported file or folder by its path."""

from dataclasses import dataclass
from pathlib import Path

from kmha.errors import InputError

SAVEDMODEL, TFLITE, ONNX = "savedmodel", "tflite", "onnx"
_SUFFIXES = {".tflite": TFLITE, ".onnx": ONNX}
_GRAPH = "saved_model.pb"


@dataclass(frozen=True)
class Artifact:
    """An exported model on disk.

    Attributes:
        path: The file, or the folder of one version.
        format: "savedmodel", "tflite" or "onnx".
    """

    path: Path
    format: str

    @property
    def bytes(self) -> int:
        """Size on disk; of a folder the size of all its files."""
        files = self.path.rglob("*") if self.path.is_dir() else [self.path]
        return sum(file.stat().st_size for file in files if file.is_file())


def find_artifact(path: Path) -> Artifact:
    """The artifact at a path: a .tflite or .onnx file, a SavedModel, or a folder of versions (the newest).

    Raises:
        InputError: There is no exported model.
    """
    path = Path(path)
    if not path.exists():
        raise InputError(f"{path}: expected an exported model, got no such file or folder")
    if path.is_file():
        if path.suffix not in _SUFFIXES:
            raise InputError(
                f"{path}: expected a SavedModel folder, a .tflite or a .onnx file, got another file"
            )
        return Artifact(path, _SUFFIXES[path.suffix])
    if (path / _GRAPH).is_file():
        return Artifact(path, SAVEDMODEL)
    versions = [each for each in path.iterdir() if each.name.isascii() and each.name.isdigit()]
    complete = [each for each in versions if (each / _GRAPH).is_file()]
    if not complete:
        raise InputError(f"{path}: expected a SavedModel or a folder of its versions, got a folder without")
    return Artifact(max(complete, key=lambda each: int(each.name)), SAVEDMODEL)
