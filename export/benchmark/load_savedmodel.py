"""Loads a SavedModel, and calls its signatures from Python."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  (at the top, so that its import does not count as loading)

from export.benchmark.loaders import LoadedModel
from export.names import PREDICT_IDS, PROBABILITIES, SERVING_DEFAULT
from export.savedmodel.predictor import open_savedmodel
from kmha.errors import InputError


def load(path: str, threads: int, sizes: dict[str, Any]) -> LoadedModel:
    """Loads a version's folder."""
    loaded = open_savedmodel(path)
    signatures = loaded.signatures
    for name in (SERVING_DEFAULT, PREDICT_IDS):
        if name not in signatures:
            raise InputError(f"{path}: expected a SavedModel with the signature {name}, got one without")

    def from_texts(texts: Sequence[bytes]) -> np.ndarray:
        # `loaded` must outlive its signatures, which do not hold the variables.
        assert loaded is not None
        return signatures[SERVING_DEFAULT](text=tf.constant(texts, tf.string))[PROBABILITIES].numpy()

    def from_ids(token_ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        outputs = signatures[PREDICT_IDS](token_ids=tf.constant(token_ids), padding_mask=tf.constant(mask))
        return outputs[PROBABILITIES].numpy()

    return LoadedModel(from_ids, from_texts)
