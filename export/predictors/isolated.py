"""Exported models asked in processes of their own, each with its own runtime and nothing else loaded."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from export.predictors import exchange
from export.predictors.artefacts import Artefact
from export.predictors.protocol import Row
from kmha.errors import InputError
from training.cli.parser import WRONG_INPUT
from training.io.json_subprocess import Crashed

_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Answers:
    """What an artefact answered.

    Attributes:
        probabilities: float32 [R, C].
        ids: Token ids of each row as its tokenizer made them; see `export.predictors.protocol.Predictor.token_ids`.
        facts: As `export.predictors.protocol.Predictor.facts`.
        vectors: As `export.predictors.protocol.Predictor.vectors`.
    """

    probabilities: np.ndarray
    ids: list[Any] | None
    facts: dict[str, Any]
    vectors: dict[str, np.ndarray] = field(default_factory=dict)


def ask(artefact: Artefact, texts: Sequence[Row]) -> Answers:
    """Answers texts or pairs in a fresh process.

    Raises:
        InputError: The artefact cannot be read or its runtime is not installed.
        Crashed: Its process failed in another way.
    """
    with tempfile.TemporaryDirectory(prefix="kmha-") as scratch:
        folder = Path(scratch)
        exchange.write_texts(folder / exchange.TEXTS, texts)
        _run(artefact, folder)
        return Answers(
            np.load(folder / exchange.PROBABILITIES, allow_pickle=False),
            json.loads((folder / exchange.IDS).read_text()),
            json.loads((folder / exchange.FACTS).read_text()),
            _arrays(folder / exchange.VECTORS),
        )


def ask_layers(
    artefact: Artefact, texts: Sequence[Row], layers: Mapping[str, np.ndarray]
) -> dict[str, float | None]:
    """How far each layer is from the artefact's nearest tensor; see `export.predictors.nearest_tensor.nearest_errors`.

    Args:
        artefact: The exported model.
        texts: What the layers were computed for.
        layers: By name, in the order of computing.

    Raises:
        InputError: As `ask`.
        Crashed: As `ask`.
    """
    with tempfile.TemporaryDirectory(prefix="kmha-") as scratch:
        folder = Path(scratch)
        exchange.write_texts(folder / exchange.TEXTS, texts)
        arrays: dict[str, Any] = dict(layers)
        np.savez(folder / exchange.LAYERS, **arrays)
        _run(artefact, folder)
        return json.loads((folder / exchange.ERRORS).read_text())


def _arrays(path: Path) -> dict[str, np.ndarray]:
    if not path.exists():
        return {}
    with np.load(path, allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}


def _run(artefact: Artefact, folder: Path) -> None:
    paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    result = subprocess.run(
        [sys.executable, "-m", "export.answer", str(artefact.path), f"--folder={folder}"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )
    if result.returncode == 0:
        return
    said = result.stderr.decode("utf-8", "replace").strip().splitlines()
    last = said[-1].strip() if said else "nothing"
    if result.returncode == WRONG_INPUT and last.startswith("error: "):
        raise InputError(last.removeprefix("error: "))
    raise Crashed(f"its process ended with status {result.returncode}, saying: {last}")
