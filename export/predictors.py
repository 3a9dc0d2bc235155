"""Exported models as things that answer texts, each by its own runtime."""

import importlib
import importlib.util
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from export.artefacts import ONNX, SAVEDMODEL, TFLITE, Artefact
from kmha.errors import InputError

# Format to the module that reads it, the packages that module needs, and what installs them.
_READERS = {
    SAVEDMODEL: ("export.read_savedmodel", ("tensorflow", "tensorflow_text"), "kmha"),
    TFLITE: ("export.read_tflite", ("ai_edge_litert",), "kmha[litert]"),
    ONNX: ("export.read_onnx", ("onnxruntime", "onnx"), "kmha[onnx]"),
}


class Predictor(Protocol):
    """An exported model, loaded."""

    def facts(self) -> dict[str, Any]:
        """JSON values that describe it.

        Returns:
            "quantization": "none", "float16", "dynamic" or "int8"; "ops": {op: count}; "lengths": the lengths in
            tokens that it takes, ascending, or None for any; "labels": the names it carries, or None.
        """
        ...

    def token_ids(self, texts: Sequence[bytes]) -> list[list[int]] | None:
        """The ids that it makes of texts, special ones included, cut to its longest length; None: not to be seen."""
        ...

    def probabilities(self, texts: Sequence[bytes]) -> np.ndarray:
        """float32 [R, C]."""
        ...

    def tensors(self, texts: Sequence[bytes]) -> Iterator[np.ndarray]:
        """All numbers that it computes on the way to the answers of a few texts, padded to one length."""
        ...


def load(artefact: Artefact) -> Predictor:
    """Loads an artefact with its runtime.

    Raises:
        InputError: The runtime is not installed, or the artefact cannot be read.
    """
    module, packages, extra = _READERS[artefact.format]
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise InputError(
                f"{artefact.path}: wanted the package {package} to read it, given none; install {extra}"
            )
    return importlib.import_module(module).read(artefact.path)
