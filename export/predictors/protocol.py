"""Exported models as things that answer texts, pairs of texts or sentences, each by its own runtime."""

import importlib
import importlib.util
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from export.predictors.artefacts import ONNX, SAVEDMODEL, TFLITE, Artefact
from kmha.errors import InputError

# Format to the module that reads it, the packages that module needs, and what installs them.
_READERS = {
    SAVEDMODEL: ("export.savedmodel.predictor", ("tensorflow", "tensorflow_text"), "kmha"),
    TFLITE: ("export.tflite.predictor", ("ai_edge_litert",), "kmha[litert]"),
    ONNX: ("export.onnx.predictor", ("onnxruntime", "onnx"), "kmha[onnx]"),
}


# A text, a pair of texts, or the words of a sentence.
Row = bytes | tuple[bytes, bytes] | list[bytes]


class Predictor(Protocol):
    """An exported model, loaded.

    Attributes:
        num_texts: Texts in a row: 1, or 2 where it takes pairs.
        sentences: Whether a row is the words of a sentence; a raw text may stand in its place where the model can
            split it. Predictors of other models need not have it.
    """

    num_texts: int

    def facts(self) -> dict[str, Any]:
        """JSON values that describe it.

        Returns:
            "quantization": "none", "float16", "dynamic" or "int8"; "ops": {op: count}; "lengths": the lengths in
            tokens that it takes, ascending, or None for any; "labels": the names it carries, or None.
        """
        ...

    def token_ids(self, texts: Sequence[Row]) -> list[Any] | None:
        """The ids that it makes of each row, special ones included, cut to its longest length; None: not to be seen.

        Of a text a list of ids; of a pair a list of them for each of its inputs, as `preprocessor.inputs` orders them;
        of a sentence one for each of its windows.
        """
        ...

    def probabilities(self, texts: Sequence[Row]) -> np.ndarray:
        """float32 [R, C]; of pairs with one score [R, 1].

        Of the N words of all sentences, one after another, float32 [N, K + 2]: the probability of each tag over all
        paths, the path probability, and the id of the tag.
        """
        ...

    def vectors(self, texts: Sequence[Row]) -> dict[str, np.ndarray]:
        """The vectors of texts that it gives beside its answers, float32 [R, D] each; none where it gives none.

        By name: "vectors" or "embed" of texts, of pairs texts B; "vectors_a" and "vectors_b" of both texts of a pair;
        "embed_query" of texts A. Predictors of sentences need not have it.
        """
        ...

    def tensors(self, texts: Sequence[Row]) -> Iterator[np.ndarray]:
        """All numbers that it computes on the way to the answers of a few rows, each text padded to one length."""
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
                f"{artefact.path}: expected the package {package} to read it, got none; install {extra}"
            )
    return importlib.import_module(module).read(artefact.path)
