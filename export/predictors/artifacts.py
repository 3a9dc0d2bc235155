"""Exported models: their formats on disk, the protocol of their predictors, and running them in their own process."""

import contextlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from kmha.errors import InputError, require_package
from training.cli.parser import WRONG_INPUT
from training.io.json_subprocess import Crashed

SAVEDMODEL, TFLITE, ONNX = "savedmodel", "tflite", "onnx"
_SUFFIXES = {".tflite": TFLITE, ".onnx": ONNX}
_GRAPH = "saved_model.pb"
# By format: the module that reads it, the packages that this module needs, and the extra that installs them.
_READERS = {
    SAVEDMODEL: ("export.savedmodel.predictor", ("tensorflow", "tensorflow_text"), ""),
    TFLITE: ("export.tflite.predictor", ("ai_edge_litert",), "litert"),
    ONNX: ("export.onnx.predictor", ("onnxruntime", "onnx"), "onnx"),
}
# A text, a pair of texts, or the words of a sentence.
Row = bytes | tuple[bytes, bytes] | list[bytes]
_ROOT = Path(__file__).resolve().parents[2]
_TEXTS, _LAYERS = "texts.jsonl", "layers.npz"
_PROBABILITIES, _IDS, _FACTS, _ERRORS = "probabilities.npy", "token_ids.json", "facts.json", "errors.json"
_VECTORS = "vectors.npz"


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

        Of a text a list of ids; of a pair a list for each of `preprocessor.inputs`; of a sentence a list for each
        window.
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
        require_package(package, str(artifact.path), extra)
    return importlib.import_module(module).read(artifact.path)


@dataclass(frozen=True)
class Predictions:
    """What an artifact returned; see the methods of `export.predictors.artifacts.Predictor`."""

    probabilities: np.ndarray
    ids: list[Any] | None
    facts: dict[str, Any]
    vectors: dict[str, np.ndarray] = field(default_factory=dict)


def predict_all(predictor: Predictor, texts: Sequence[Row]) -> Predictions:
    """Everything that a predictor returns for texts, pairs or sentences."""
    vectors = predictor.vectors(texts) if hasattr(predictor, "vectors") else {}
    return Predictions(predictor.probabilities(texts), predictor.token_ids(texts), predictor.facts(), vectors)


def predict_isolated(artifact: Artifact, texts: Sequence[Row]) -> Predictions:
    """Predictions for texts, pairs or sentences from a new process.

    Raises InputError if the artifact cannot be read or its runtime is not installed, Crashed if its process fails
    otherwise.
    """
    with _exchange_folder(texts) as folder:
        _run(artifact, folder)
        return Predictions(
            np.load(folder / _PROBABILITIES, allow_pickle=False),
            json.loads((folder / _IDS).read_text()),
            json.loads((folder / _FACTS).read_text()),
            _arrays(folder / _VECTORS),
        )


def layer_errors_isolated(
    artifact: Artifact, texts: Sequence[Row], layers: Mapping[str, np.ndarray]
) -> dict[str, float | None]:
    """The `nearest_errors` of layers, given in the order of computation for the rows; raises as `predict_isolated`."""
    with _exchange_folder(texts) as folder:
        arrays: dict[str, Any] = dict(layers)
        np.savez(folder / _LAYERS, **arrays)
        _run(artifact, folder)
        return json.loads((folder / _ERRORS).read_text())


def serve_folder(predictor: Predictor, folder: Path) -> None:
    """The other process: reads a folder's texts, and writes the predictions or the errors of the layers there."""
    texts = read_texts(folder / _TEXTS, getattr(predictor, "sentences", False))
    if (folder / _LAYERS).exists():
        errors = nearest_errors(_arrays(folder / _LAYERS), predictor.tensors(texts))
        (folder / _ERRORS).write_text(json.dumps(errors, allow_nan=False))
        return
    found = predict_all(predictor, texts)
    np.save(folder / _PROBABILITIES, found.probabilities, allow_pickle=False)
    (folder / _IDS).write_text(json.dumps(found.ids, allow_nan=False))
    (folder / _FACTS).write_text(json.dumps(found.facts, allow_nan=False))
    vectors: dict[str, Any] = found.vectors
    np.savez(folder / _VECTORS, **vectors)


def read_texts(path: Path, as_sentences: bool = False) -> list[Any]:
    """Texts of a file of JSON strings; lists are pairs, or with `as_sentences` the words of sentences.

    Lone surrogates represent bytes that are not UTF-8.
    """
    rows = (json.loads(line) for line in path.read_text("utf-8").splitlines())
    sequence = list if as_sentences else tuple
    return [_bytes(row) if isinstance(row, str) else sequence(map(_bytes, row)) for row in rows]


def write_texts(path: Path, texts: Sequence[Row]) -> None:
    """Writes the file that `read_texts` reads."""
    rows = (_string(row) if isinstance(row, bytes) else list(map(_string, row)) for row in texts)
    path.write_text("".join(f"{json.dumps(row, allow_nan=False)}\n" for row in rows), "utf-8")


@contextlib.contextmanager
def _exchange_folder(texts: Sequence[Row]) -> Iterator[Path]:
    """A temporary folder with the texts."""
    with tempfile.TemporaryDirectory(prefix="kmha-") as folder:
        write_texts(Path(folder) / _TEXTS, texts)
        yield Path(folder)


def _arrays(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}


def python_path() -> str:
    """PYTHONPATH for a process that imports this package."""
    return os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])


def _run(artifact: Artifact, folder: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "export.answer", str(artifact.path), f"--folder={folder}"],
        env={**os.environ, "PYTHONPATH": python_path()},
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )
    if result.returncode == 0:
        return
    lines = result.stderr.decode("utf-8", "replace").strip().splitlines()
    last = lines[-1].strip() if lines else "nothing"
    if result.returncode == WRONG_INPUT and last.startswith("error: "):
        raise InputError(last.removeprefix("error: "))
    raise Crashed(f"its process ended with status {result.returncode}; last line: {last}")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _string(text: bytes) -> str:
    return text.decode("utf-8", "surrogateescape")


def nearest_errors(
    layers: Mapping[str, np.ndarray], tensors: Iterable[np.ndarray]
) -> dict[str, float | None]:
    """How far each layer is from the nearest tensor of the exported model for the same input.

    Exports do not retain layer names, so each tensor is compared with all layers of its size; one of integers must
    match exactly. Returns for each layer |tensor - layer| / |layer| (Euclidean; of integers 0 or 1), or None where no
    tensor of its size is finite.
    """
    expected: dict[int, list[str]] = {}
    for name, layer in layers.items():
        expected.setdefault(layer.size, []).append(name)
    errors: dict[str, float | None] = dict.fromkeys(layers)
    for tensor in tensors:
        for name in expected.get(tensor.size, ()):
            error, best = _error(layers[name], tensor), errors[name]
            if np.isfinite(error) and (best is None or error < best):
                errors[name] = error
    return errors


def _error(layer: np.ndarray, tensor: np.ndarray) -> float:
    if layer.dtype.kind == "i":
        return float(tensor.dtype.kind != "i" or (tensor.ravel() != layer.ravel()).any())
    flat = layer.ravel().astype(np.float64)
    return float(np.linalg.norm(tensor.ravel() - flat) / max(float(np.linalg.norm(flat)), 1e-12))
