"""A SavedModel's signatures, called from Python."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  (here, so that its import does not count as loading)

from export.benchmark.timed import Timed
from export.savedmodel.predictor import open_savedmodel
from kmha.errors import InputError

FROM_TEXTS, FROM_IDS, PROBABILITIES = "serving_default", "predict_ids", "probabilities"


def load(path: str, threads: int, sizes: dict[str, Any]) -> Timed:
    """Loads a version's folder.

    Args:
        path: Of the version.
        threads: Unused; TensorFlow takes its number from the environment.
        sizes: Unused.

    Raises:
        InputError: It holds no SavedModel that `export.savedmodel` wrote.
    """
    loaded = open_savedmodel(path)
    signatures = loaded.signatures
    for name in (FROM_TEXTS, FROM_IDS):
        if name not in signatures:
            raise InputError(f"{path}: expected a SavedModel with the signature {name}, got one without")

    def from_texts(texts: Sequence[bytes]) -> np.ndarray:
        # `loaded` must outlive its signatures, which do not hold the variables themselves.
        assert loaded is not None
        return signatures[FROM_TEXTS](text=tf.constant(texts, tf.string))[PROBABILITIES].numpy()

    def from_ids(token_ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        answers = signatures[FROM_IDS](token_ids=tf.constant(token_ids), padding_mask=tf.constant(mask))
        return answers[PROBABILITIES].numpy()

    return Timed(from_ids, from_texts)
