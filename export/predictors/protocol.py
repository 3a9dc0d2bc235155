"""The protocol of exported models that predict for texts, pairs or sentences, and their loader."""

import importlib
import importlib.util
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from export.predictors.artifacts import ONNX, SAVEDMODEL, TFLITE, Artifact
from kmha.errors import InputError

# By format: the module that reads it, the packages that this module needs, and the extra that installs them.
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
        num_texts: Texts in a row: 1, or 2 for pairs.
        sentences: Whether a row is the words of a sentence, or a raw text that the model splits. Optional for other
            models.
    """

    num_texts: int

    def facts(self) -> dict[str, Any]:
        """JSON values that describe the model.

        Returns:
            "quantization": "none", "float16", "dynamic" or "int8"; "ops": {op: count}; "lengths": the lengths in
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
    """Loads an artifact into its runtime.

    Raises:
        InputError: The runtime is not installed, or the artifact cannot be read.
    """
    module, packages, extra = _READERS[artifact.format]
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise InputError(
                f"{artifact.path}: expected the package {package} to read it, got none; install {extra}"
            )
    return importlib.import_module(module).read(artifact.path)
