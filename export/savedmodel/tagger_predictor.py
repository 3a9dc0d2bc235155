"""A tagger's SavedModel as something that answers sentences; see `export.savedmodel.predictor`."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from export.predictors.protocol import Row
from export.savedmodel.graph_inspection import ops_of, tensors_of

PREDICT_TEXT, PREDICT_WORDS = "serving_default", "predict_words"
EXPLAIN, EXPLAIN_WORDS = "explain", "explain_words"
TEXT, WORDS, NUM_WORDS = "text", "words", "num_words"
BATCH_ROWS = 32


class ServedTagger:
    """See `export.predictors.protocol.Predictor`; a row is a list of words or a raw text.

    Args:
        path: Of the version's folder.
        loaded: What `tf.saved_model.load` gave.
    """

    num_texts = 1
    sentences = True

    def __init__(self, path: Path, loaded: Any):
        self._path, self._loaded = path, loaded

    def facts(self) -> dict[str, Any]:
        """See the protocol."""
        names = self.ask(PREDICT_TEXT, [b""])["labels"][0]
        return {
            "quantization": "none",
            "ops": ops_of(self._path),
            "lengths": None,
            "labels": [name.decode() for name in names],
        }

    def token_ids(self, texts: Sequence[Row]) -> None:
        """See the protocol: the tokenizer is inside."""

    def probabilities(self, texts: Sequence[Row]) -> np.ndarray:
        """See the protocol: of each word the marginals, the path probability and the tag id, float32 [N, K + 2]."""
        found: list[Any] = [None] * len(texts)
        for name, raw in ((PREDICT_TEXT, True), (PREDICT_WORDS, False)):
            rows = [row for row, text in enumerate(texts) if isinstance(text, bytes) == raw]
            # Rows of similar length together: all are padded to the longest.
            rows.sort(key=lambda row: len(texts[row]))
            for first in range(0, len(rows), BATCH_ROWS):
                chosen = rows[first : first + BATCH_ROWS]
                answers = self.ask(name, [texts[row] for row in chosen])
                for index, row in enumerate(chosen):
                    found[row] = _of_words(answers, index)
        classes = len(self.ask(PREDICT_TEXT, [b""])["labels"][0])
        return np.concatenate([np.zeros((0, classes + 2), np.float32), *found])

    def tensors(self, texts: Sequence[Row]) -> Iterator[np.ndarray]:
        """See the protocol; all texts of one kind. Those of an explanation, which computes all windows at once."""
        raw = isinstance(texts[0], bytes)
        yield from tensors_of(self._loaded.signatures[EXPLAIN if raw else EXPLAIN_WORDS], _inputs(texts))

    def ask(self, signature: str, texts: Sequence[Any]) -> dict[str, np.ndarray]:
        """What a signature gives of raw texts or of lists of words, with the number of words of each."""
        inputs = _inputs(texts)
        answers = self._loaded.signatures[signature](**inputs)
        counts = {NUM_WORDS: inputs[NUM_WORDS]} if NUM_WORDS in inputs else {}
        return {name: np.asarray(value) for name, value in {**answers, **counts}.items()}


def _of_words(answers: dict[str, np.ndarray], row: int) -> np.ndarray:
    """float32 [n, K + 2] of the words of a row."""
    count = answers[NUM_WORDS][row]
    path, tag_ids = (answers[name][row, :count, None] for name in ("path_probabilities", "tag_ids"))
    return np.concatenate([answers["probabilities"][row, :count], path, tag_ids.astype(np.float32)], axis=1)


def _inputs(texts: Sequence[Any]) -> dict[str, Any]:
    """Raw texts, or lists of words, as a signature's inputs by name."""
    import tensorflow as tf

    if texts and isinstance(texts[0], bytes):
        return {TEXT: tf.constant(list(texts), tf.string)}
    lengths = [len(words) for words in texts]
    padded = [[*words, *[b""] * (max(lengths) - len(words))] for words in texts]
    words = tf.reshape(tf.constant(padded, tf.string), [len(texts), max(lengths, default=0)])
    return {WORDS: words, NUM_WORDS: tf.constant(lengths, tf.int32)}
