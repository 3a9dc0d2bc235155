"""Exported models: their formats on disk, the protocol of their predictors, and the loader."""

import importlib
import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from kmha.errors import InputError

SAVEDMODEL, TFLITE, ONNX = "savedmodel", "tflite", "onnx"
_SUFFIXES = {".tflite": TFLITE, ".onnx": ONNX}
_GRAPH = "saved_model.pb"
# By format: the module that reads it, the packages that this module needs, and the extra that installs them.
_READERS = {
    SAVEDMODEL: ("export.savedmodel.predictor", ("tensorflow", "tensorflow_text"), "kmha"),
    TFLITE: ("export.tflite.predictor", ("ai_edge_litert",), "kmha[litert]"),
    ONNX: ("export.onnx.predictor", ("onnxruntime", "onnx"), "kmha[onnx]"),
}
# A text, a pair of texts, or the words of a sentence.
Row = bytes | tuple[bytes, bytes] | list[bytes]


@dataclass(frozen=True)
class Artifact:
    """An exported model on disk: a file, or the folder of one version; format is "savedmodel", "tflite" or "onnx"."""

    path: Path
    format: str

    @property
    def bytes(self) -> int:
        """Size on disk; of a folder the size of all its files."""
        files = self.path.rglob("*") if self.path.is_dir() else [self.path]
        return sum(file.stat().st_size for file in files if file.is_file())


def find_artifact(path: Path) -> Artifact:
    """The artifact at a path: a .tflite or .onnx file, a SavedModel, or a folder of versions (the newest).

    Raises InputError if there is no exported model.
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


class Predictor(Protocol):
    """An exported model, loaded.

    A row is one text, or a pair where `num_texts` is 2. Where the optional `sentences` is true, it is the words of a
    sentence or a raw text that the model splits.
    """

    num_texts: int

    def facts(self) -> dict[str, Any]:
        """JSON values that describe the model.

        Returns "quantization": "none", "float16", "dynamic" or "int8"; "ops": {op: count}; "lengths": the lengths in
        tokens that it takes, ascending, or None for any; "labels": its label names, or None.
        """
        ...

    def token_ids(self, texts: Sequence[Row]) -> list[Any] | None:
        """Token ids of each row, special ones included, truncated to the longest length; None: not available.

        Of a text a list of ids; of a pair a list for each input, in the order of `preprocessor.inputs`; of a sentence a
        list for each window.
        """
        ...

    def probabilities(self, texts: Sequence[Row]) -> np.ndarray:
        """float32 [R, C]; of pairs with one score [R, 1].

        Of the N words of all sentences, one after another, float32 [N, K + 2]: the probability of each tag over all
        paths, the path probability, and the id of the tag.
        """
        ...

    def vectors(self, texts: Sequence[Row]) -> dict[str, np.ndarray]:
        """Text vectors, float32 [R, D] each, by name; empty if the model has none. Optional for sentences.

        "vectors" or "embed" are of texts, of pairs of text B; "vectors_a" and "vectors_b" of both texts of a pair;
        "embed_query" of text A.
        """
        ...

    def tensors(self, texts: Sequence[Row]) -> Iterator[np.ndarray]:
        """All tensors that it computes for a few rows, every text padded to one length."""
        ...


def load(artifact: Artifact) -> Predictor:
    """Loads an artifact into its runtime; raises InputError if that is not installed, or it cannot be read."""
    module, packages, extra = _READERS[artifact.format]
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise InputError(
                f"{artifact.path}: expected the package {package} to read it, got none; install {extra}"
            )
    return importlib.import_module(module).read(artifact.path)
