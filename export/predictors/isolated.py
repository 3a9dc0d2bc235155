"""Runs an exported model in its own process with its own runtime; texts and predictions go through files."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from export.predictors.artifacts import Artifact
from export.predictors.protocol import Predictor, Row
from kmha.errors import InputError
from training.cli.parser import WRONG_INPUT
from training.io.json_subprocess import Crashed

_ROOT = Path(__file__).resolve().parents[2]
_TEXTS, _LAYERS = "texts.jsonl", "layers.npz"
_PROBABILITIES, _IDS, _FACTS, _ERRORS = "probabilities.npy", "token_ids.json", "facts.json", "errors.json"
_VECTORS = "vectors.npz"


@dataclass(frozen=True)
class Predictions:
    """What an artifact returned.

    Attributes:
        probabilities: float32 [R, C].
        ids: Token ids of each row; see `export.predictors.protocol.Predictor.token_ids`.
        facts: As `export.predictors.protocol.Predictor.facts`.
        vectors: As `export.predictors.protocol.Predictor.vectors`.
    """

    probabilities: np.ndarray
    ids: list[Any] | None
    facts: dict[str, Any]
    vectors: dict[str, np.ndarray] = field(default_factory=dict)


def predict_isolated(artifact: Artifact, texts: Sequence[Row]) -> Predictions:
    """Predictions for texts, pairs or sentences from a new process.

    Raises:
        InputError: The artifact cannot be read or its runtime is not installed.
        Crashed: Its process failed in another way.
    """
    with _exchange_folder(texts) as folder:
        _run(artifact, folder)
        return Predictions(
            np.load(folder / _PROBABILITIES, allow_pickle=False),
            json.loads((folder / _IDS).read_text()),
            json.loads((folder / _FACTS).read_text()),
            _arrays(folder / _VECTORS) if (folder / _VECTORS).exists() else {},
        )


def layer_errors_isolated(
    artifact: Artifact, texts: Sequence[Row], layers: Mapping[str, np.ndarray]
) -> dict[str, float | None]:
    """How far each layer is from the artifact's nearest tensor; see `export.predictors.nearest_tensor.nearest_errors`.

    Args:
        artifact: The exported model.
        texts: The rows for which the layers were computed.
        layers: By name, in the order of computation.

    Raises:
        InputError: As `predict_isolated`.
        Crashed: As `predict_isolated`.
    """
    with _exchange_folder(texts) as folder:
        arrays: dict[str, Any] = dict(layers)
        np.savez(folder / _LAYERS, **arrays)
        _run(artifact, folder)
        return json.loads((folder / _ERRORS).read_text())


def serve_folder(predictor: Predictor, folder: Path) -> None:
    """The other process: reads a folder's texts, and writes the predictions or the errors of the layers there."""
    texts = read_texts(folder / _TEXTS, getattr(predictor, "sentences", False))
    if (folder / _LAYERS).exists():
        from export.predictors.nearest_tensor import nearest_errors

        errors = nearest_errors(_arrays(folder / _LAYERS), predictor.tensors(texts))
        (folder / _ERRORS).write_text(json.dumps(errors))
        return
    np.save(folder / _PROBABILITIES, predictor.probabilities(texts), allow_pickle=False)
    (folder / _IDS).write_text(json.dumps(predictor.token_ids(texts)))
    (folder / _FACTS).write_text(json.dumps(predictor.facts()))
    if hasattr(predictor, "vectors"):
        vectors: dict[str, Any] = predictor.vectors(texts)
        np.savez(folder / _VECTORS, **vectors)


def read_texts(path: Path, as_sentences: bool = False) -> list[Any]:
    """Texts of a file of JSON strings, or pairs from lists; lone surrogates represent bytes that are not UTF-8.

    Args:
        path: The file.
        as_sentences: Whether its lists are the words of sentences.
    """
    rows = (json.loads(line) for line in path.read_text("utf-8").splitlines())
    sequence = list if as_sentences else tuple
    return [_bytes(row) if isinstance(row, str) else sequence(map(_bytes, row)) for row in rows]


def write_texts(path: Path, texts: Sequence[Row]) -> None:
    """Writes the file that `read_texts` reads."""
    rows = (_string(row) if isinstance(row, bytes) else list(map(_string, row)) for row in texts)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")


@contextlib.contextmanager
def _exchange_folder(texts: Sequence[Row]) -> Iterator[Path]:
    """A temporary folder with the texts."""
    with tempfile.TemporaryDirectory(prefix="kmha-") as folder:
        write_texts(Path(folder) / _TEXTS, texts)
        yield Path(folder)


def _arrays(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}


def _run(artifact: Artifact, folder: Path) -> None:
    paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    result = subprocess.run(
        [sys.executable, "-m", "export.answer", str(artifact.path), f"--folder={folder}"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
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
