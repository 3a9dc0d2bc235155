"""Reads a SavedModel with TensorFlow and tensorflow-text, and nothing of the code that trained it."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from export.predictors.protocol import Row
from export.savedmodel.graph_inspection import ops_of, tensors_of
from export.savedmodel.tagger_predictor import PREDICT_WORDS, ServedTagger
from kmha.errors import InputError
from kmha.quiet import import_tensorflow

SIGNATURE, TEXT, TEXT_A, TEXT_B = "serving_default", "text", "text_a", "text_b"
PROBABILITIES, LABELS, SCORE = "probabilities", "labels", "score"
EMBED, EMBED_QUERY, VECTORS = "embed", "embed_query", "vectors"
BATCH_ROWS = 32


class SavedModelPredictor:
    """See `export.predictors.protocol.Predictor`."""

    def __init__(self, path: Path, loaded: Any):
        # `_loaded` must outlive the signature, which does not hold the variables itself.
        self._path, self._loaded = path, loaded
        self._signature, self._names = _text_signature(path, loaded)
        self.num_texts = len(self._names)

    def facts(self) -> dict[str, Any]:
        """See the protocol; a matcher with one score calls it so."""
        answers = self._signature(**self.columns([(b"",) * self.num_texts]))
        names = [b"score"] if SCORE in answers else answers[LABELS].numpy()[0]
        return {
            "quantization": "none",
            "ops": ops_of(self._path),
            "lengths": None,
            "labels": [name.decode() for name in names],
        }

    def token_ids(self, texts: Sequence[Row]) -> None:
        """See the protocol: the tokenizer is inside."""

    def probabilities(self, texts: Sequence[Row]) -> np.ndarray:
        """See the protocol."""
        parts = [texts[first : first + BATCH_ROWS] for first in range(0, len(texts), BATCH_ROWS)] or [[]]
        return np.concatenate([self._answers(part) for part in parts])

    def _answers(self, rows: Sequence[Row]) -> np.ndarray:
        answers = self._signature(**self.columns(rows))
        return answers[SCORE].numpy()[:, None] if SCORE in answers else answers[PROBABILITIES].numpy()

    def vectors(self, texts: Sequence[Row]) -> dict[str, np.ndarray]:
        """See the protocol."""
        found = {}
        for name in (EMBED, EMBED_QUERY):
            if name not in self._loaded.signatures:
                continue
            column = [row if isinstance(row, bytes) else row[-1 if name == EMBED else 0] for row in texts]
            parts = (column[first : first + BATCH_ROWS] for first in range(0, len(column), BATCH_ROWS))
            embed = self._loaded.signatures[name]
            found[name] = np.concatenate([embed(text=_strings(part))[VECTORS].numpy() for part in parts])
        return found

    def tensors(self, texts: Sequence[Row]) -> Iterator[np.ndarray]:
        """See the protocol."""
        yield from tensors_of(self._signature, self.columns(texts))

    def columns(self, rows: Sequence[Any]) -> dict[str, Any]:
        """The rows as the signature's inputs by name, string [R] each."""
        rows = [(row,) if isinstance(row, bytes) else row for row in rows]
        return {name: _strings([row[index] for row in rows]) for index, name in enumerate(self._names)}


def read(path: Path) -> SavedModelPredictor | ServedTagger:
    """Loads a version's folder.

    Raises:
        InputError: It holds no SavedModel with a text signature.
    """
    loaded = open_savedmodel(path)
    return (ServedTagger if PREDICT_WORDS in loaded.signatures else SavedModelPredictor)(path, loaded)


def open_savedmodel(path: Path | str) -> Any:
    """What `tf.saved_model.load` gives, with tensorflow-text's ops at hand.

    Raises:
        InputError: No SavedModel stands there, or not one that can be loaded.
    """
    import_tensorflow()
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  (registers the tokenizer's ops)

    try:
        return tf.saved_model.load(str(path))
    except (OSError, ValueError, tf.errors.OpError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(f"{path}: expected a SavedModel, got another folder ({reason})") from error


def _text_signature(path: Path, loaded: Any) -> tuple[Any, tuple[str, ...]]:
    """The signature of texts of what was loaded, and the names of those in the order of a row."""
    signature = loaded.signatures.get(SIGNATURE)
    takes = {} if signature is None else signature.structured_input_signature[1]
    for names in ((TEXT,), (TEXT_A, TEXT_B)):
        if set(takes) == set(names):
            return signature, names
    raise InputError(
        f"{path}: expected a SavedModel whose {SIGNATURE} takes {TEXT}, or {TEXT_A} and {TEXT_B}, got one without"
    )


def _strings(texts: Sequence[bytes]):
    import tensorflow as tf

    return tf.constant(list(texts), tf.string)
