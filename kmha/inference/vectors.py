"""Vectors of texts, from every model that reads a text alone; those of a bi matcher are what it compares."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from kmha.bundle.bundle import BATCH_TOKENS
from kmha.document_windows import computed_tokens
from kmha.errors import InputError
from kmha.features import SIDES
from kmha.inference.length_batches import length_batches
from kmha.inference.rows import CHUNK_ROWS, Text, checked_texts, chunks
from kmha.text.sentence_preprocessor import Cut, SentencePreprocessor
from kmha.text.windows import first_windows


class Reads(Protocol):
    """A model and what cuts texts for it: a bundle, or a checkpoint's encoder."""

    @property
    def model(self) -> Any:
        """Has `vectors` and `vector_dim`."""
        ...

    @property
    def preprocessor(self) -> Any:
        """Makes its features."""
        ...


class TextReader:
    """Reads texts alone.

    Args:
        bundle: Of texts, or of pairs.
        side: Of pairs, "a" for the first texts, "b" for the second ones.
    """

    def __init__(self, bundle: Reads, side: str = "b"):
        number = SIDES.index(side) if bundle.preprocessor.num_texts == 2 else 0
        self._inputs = [each for each in bundle.preprocessor.inputs if each.text == number]
        self.most_bytes = bundle.preprocessor.max_bytes
        self._cut = tf.function(
            self.cut_in_graph, input_signature=[tf.TensorSpec([None], tf.string)], autograph=False
        )

    def cut_in_graph(self, texts: Any) -> list[Any]:
        """Ragged ids int32 [R, None] in every granularity, of texts, string [R]."""
        return [each.part.sequences(each.part.tokenize(texts)) for each in self._inputs]

    def cut(self, texts: Sequence[Text]) -> list[Any]:
        """Ragged ids int32 [R, None] in every granularity; raises InputError where something is no text."""
        return self._cut(tf.constant(checked_texts(texts, self.most_bytes), tf.string))

    def lengths(self, sequences: Sequence[Any]) -> np.ndarray:
        """Tokens of each row of what `cut` gave, in all granularities together: int64 [R]."""
        return np.sum([each.row_lengths().numpy() for each in sequences], axis=0)

    def features(self, sequences: Sequence[Any], rows: np.ndarray | None = None) -> dict[str, Any]:
        """The features int32 [r, T] of what `cut` gave, or of some rows of it."""
        features: dict[str, Any] = {}
        for given, ids in zip(self._inputs, sequences, strict=True):
            chosen = ids if rows is None else tf.gather(ids, rows)
            features |= given.part.padded(chosen, given.ids, given.mask)
        return features


class SentenceReader:
    """Reads texts as a tagger does, of a long one the first window: as other models, no more than fits one sequence.

    Args:
        bundle: A tagger's.
    """

    def __init__(self, bundle: Reads):
        self._preprocessor: SentencePreprocessor = bundle.preprocessor
        # Of a text only what one window may need.
        self.most_bytes = self._preprocessor.part.max_bytes
        self._cut = tf.function(
            self.cut_in_graph, input_signature=[tf.TensorSpec([None], tf.string)], autograph=False
        )

    def cut_in_graph(self, texts: Any) -> Cut:
        """One window of each text, string [R]."""
        words = self._preprocessor.words(texts).words[:, : self._preprocessor.max_length]
        cut = self._preprocessor.cut(words)
        return self._preprocessor.chosen(cut, first_windows(cut.windows))

    def cut(self, texts: Sequence[Text]) -> Cut:
        """One window of each text; raises InputError where something is no text."""
        return self._cut(tf.constant(checked_texts(texts, self.most_bytes), tf.string))

    def lengths(self, cut: Cut) -> np.ndarray:
        """Tokens of each window, int64 [R]."""
        return cut.windows.sequences.row_lengths().numpy()

    def features(self, cut: Cut, rows: np.ndarray | None = None) -> dict[str, Any]:
        """The features of what `cut` gave, or of some rows of it."""
        return self._preprocessor.pad(cut if rows is None else self._preprocessor.chosen(cut, rows))


class TextVectors:
    """Unit vectors of texts.

    Args:
        bundle: Of a model that reads a text alone.
        side: Of a matcher, "a" for queries, "b" for documents; it matters where each has weights of its own.

    Call:
        texts: Any texts. What is longer than the model can read is cut, as it is for answers.
        Returns float32 [R, D].

    Raises:
        InputError: The model reads two texts as one, or something is no text.
    """

    def __init__(self, bundle: Reads, side: str = "b"):
        model = bundle.model
        check_has_vectors(model)
        sentences = isinstance(bundle.preprocessor, SentencePreprocessor)
        reader: Any = SentenceReader(bundle) if sentences else TextReader(bundle, side)
        self._model, self._reader = model, reader
        self.dim: int = model.vector_dim
        sides = {"side": side} if bundle.preprocessor.num_texts == 2 else {}
        self._vectors = tf.function(
            lambda features: model.vectors(features, **sides), reduce_retracing=True, autograph=False
        )
        # A query is one small text: from string to vector in one graph, the steps between would cost more than it.
        self._vector = tf.function(
            lambda texts: model.vectors(reader.features(reader.cut_in_graph(texts)), **sides),
            input_signature=[tf.TensorSpec([1], tf.string)],
            autograph=False,
        )

    def __call__(self, texts: Sequence[Text]) -> np.ndarray:
        """See the class."""
        parts = [self._chunk(texts[i : i + CHUNK_ROWS]) for i in range(0, len(texts), CHUNK_ROWS)]
        return np.concatenate(parts) if parts else np.zeros((0, self.dim), np.float32)

    def stream(self, texts: Iterator[Text]) -> Iterator[tuple[list[Text], np.ndarray]]:
        """Texts of a stream, some at a time, and their vectors, float32 [r, D], without holding them all."""
        for chunk in chunks(texts, CHUNK_ROWS):
            yield chunk, self(chunk)

    def _chunk(self, texts: Sequence[Text]) -> np.ndarray:
        if len(texts) == 1:
            return self._vector(tf.constant(checked_texts(texts, self._reader.most_bytes), tf.string)).numpy()
        cut = self._reader.cut(texts)
        result = np.zeros((len(texts), self.dim), np.float32)
        for rows in length_batches(computed_tokens(self._model, self._reader.lengths(cut)), BATCH_TOKENS):
            result[rows] = self._vectors(self._reader.features(cut, rows)).numpy()
        return result


def check_has_vectors(model: Any) -> None:
    """Raises InputError where a model's texts have no vectors of their own."""
    if getattr(model, "form", "") == "joint":
        raise InputError(
            "expected a model that reads each text alone, got a matcher of the joint form, which reads two as one"
        )
