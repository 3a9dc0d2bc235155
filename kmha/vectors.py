"""Vectors of texts from a matcher of the bi form, to be computed once and compared with many."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from kmha.bundle import BATCH_TOKENS, Bundle
from kmha.errors import InputError
from kmha.features import SIDES
from kmha.length_batches import length_batches
from kmha.manifest import MATCH
from kmha.rows import CHUNK_ROWS, checked_texts


class SideReader:
    """Reads texts as one side of pairs.

    Args:
        bundle: A matcher.
        side: "a" for the first texts, "b" for the second ones.
    """

    def __init__(self, bundle: Bundle, side: str):
        self._inputs = [each for each in bundle.preprocessor.inputs if each.text == SIDES.index(side)]
        self.most_bytes = bundle.preprocessor.max_bytes
        self._cut = tf.function(self.cut_in_graph, input_signature=[tf.TensorSpec([None], tf.string)])

    def cut_in_graph(self, texts: Any) -> list[Any]:
        """Ragged ids int32 [R, None] in every granularity, of texts, string [R]."""
        return [each.part.sequences(each.part.tokenize(texts)) for each in self._inputs]

    def cut(self, texts: Sequence[str | bytes]) -> list[Any]:
        """Ragged ids int32 [R, None] in every granularity; raises InputError where something is no text."""
        return self._cut(tf.constant(checked_texts(texts, self.most_bytes), tf.string))

    def features(self, sequences: Sequence[Any], rows: np.ndarray | None = None) -> dict[str, Any]:
        """The features int32 [r, T] of what `cut` gave, or of some rows of it."""
        features: dict[str, Any] = {}
        for given, ids in zip(self._inputs, sequences, strict=True):
            chosen = ids if rows is None else tf.gather(ids, rows)
            features |= given.part.padded(chosen, given.ids, given.mask)
        return features


class TextVectors:
    """Unit vectors of texts.

    Args:
        bundle: A matcher of the bi form.
        side: "a" for queries, "b" for documents; it matters where each has weights of its own.

    Call:
        texts: Any texts.
        Returns float32 [R, D].

    Raises:
        InputError: The bundle is another one, or something is no text.
    """

    def __init__(self, bundle: Bundle, side: str = "b"):
        if bundle.task != MATCH or bundle.model.form != "bi":
            given = f"one of the {bundle.model.form} form" if bundle.task == MATCH else "a classifier"
            raise InputError(
                f"wanted a matcher of the bi form, whose texts have vectors of their own, given {given}"
            )
        self._reader = SideReader(bundle, side)
        self._dim = bundle.model.vector_dim
        self._vectors = tf.function(
            lambda features: bundle.model.vectors(features, side), reduce_retracing=True
        )
        # A query is one small text: from string to vector in one graph, the steps between would cost more than it.
        self._vector = tf.function(
            lambda texts: bundle.model.vectors(self._reader.features(self._reader.cut_in_graph(texts)), side),
            input_signature=[tf.TensorSpec([1], tf.string)],
        )

    def __call__(self, texts: Sequence[str | bytes]) -> np.ndarray:
        """See the class."""
        parts = [self._chunk(texts[i : i + CHUNK_ROWS]) for i in range(0, len(texts), CHUNK_ROWS)]
        return np.concatenate(parts) if parts else np.zeros((0, self._dim), np.float32)

    def _chunk(self, texts: Sequence[str | bytes]) -> np.ndarray:
        if len(texts) == 1:
            return self._vector(tf.constant(checked_texts(texts, self._reader.most_bytes), tf.string)).numpy()
        sequences = self._reader.cut(texts)
        result = np.zeros((len(texts), self._dim), np.float32)
        for rows in length_batches(total_lengths(sequences), BATCH_TOKENS):
            result[rows] = self._vectors(self._reader.features(sequences, rows)).numpy()
        return result


def total_lengths(sequences: Sequence[Any]) -> np.ndarray:
    """Tokens of each row in all granularities together, int64 [R], of ragged ids int32 [R, None]."""
    return np.sum([each.row_lengths().numpy() for each in sequences], axis=0)
