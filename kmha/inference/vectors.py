"""Unit vectors of texts, from any model that encodes a text by itself."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from kmha.document_windows import computed_tokens
from kmha.errors import InputError
from kmha.features import SIDES
from kmha.inference.batching import BATCH_TOKENS, CHUNK_ROWS, Text, chunks, encode_texts, length_batches
from kmha.text.sentence_preprocessor import EncodedSentences, SentencePreprocessor
from kmha.text.sentence_windows import first_windows


class TextModel(Protocol):
    """A model and its preprocessor: a bundle, or the encoder of a checkpoint."""

    @property
    def model(self) -> Any:
        """The model, with `vectors` and `vector_dim`."""
        ...

    @property
    def preprocessor(self) -> Any:
        """The preprocessor that makes the model's features."""
        ...


class TextReader:
    """Tokenizes single texts for a model of texts or of pairs.

    Args:
        bundle: A bundle of texts or of pairs.
        side: For pairs, "a" for first texts, "b" for second texts.
    """

    def __init__(self, bundle: TextModel, side: str = "b"):
        number = SIDES.index(side) if bundle.preprocessor.num_texts == 2 else 0
        self._inputs = [each for each in bundle.preprocessor.inputs if each.text == number]
        self.max_bytes = bundle.preprocessor.max_bytes
        self._encode = tf.function(
            self.encode_in_graph, input_signature=[tf.TensorSpec([None], tf.string)], autograph=False
        )

    def encode_in_graph(self, texts: Any) -> list[Any]:
        """Token ids of texts, string [R], one ragged int32 [R, None] for each granularity."""
        return [each.part.add_special_tokens(each.part.tokenize(texts)) for each in self._inputs]

    def encode(self, texts: Sequence[Text]) -> list[Any]:
        """As `encode_in_graph`, for Python strings; raises InputError if an item is not a text."""
        return self._encode(tf.constant(encode_texts(texts, self.max_bytes), tf.string))

    def lengths(self, sequences: Sequence[Any]) -> np.ndarray:
        """Tokens of each row of an `encode` result, summed over granularities: int64 [R]."""
        return np.sum([each.row_lengths().numpy() for each in sequences], axis=0)

    def features(self, sequences: Sequence[Any], rows: np.ndarray | None = None) -> dict[str, Any]:
        """Features int32 [r, T] of an `encode` result, or of some of its rows."""
        features: dict[str, Any] = {}
        for given, ids in zip(self._inputs, sequences, strict=True):
            selected = ids if rows is None else tf.gather(ids, rows)
            features |= given.part.pad_sequences(selected, given.ids, given.mask)
        return features


class SentenceReader:
    """Tokenizes texts for a tagger; a text is truncated to its first window, as other models truncate texts.

    Args:
        bundle: The bundle of a tagger.
    """

    def __init__(self, bundle: TextModel):
        self._preprocessor: SentencePreprocessor = bundle.preprocessor
        # Enough for one window.
        self.max_bytes = self._preprocessor.part.max_bytes
        self._encode = tf.function(
            self.encode_in_graph, input_signature=[tf.TensorSpec([None], tf.string)], autograph=False
        )

    def encode_in_graph(self, texts: Any) -> EncodedSentences:
        """The first window of each text, string [R]."""
        words = self._preprocessor.words(texts).words[:, : self._preprocessor.max_length]
        encoded = self._preprocessor.encode(words)
        return self._preprocessor.select_windows(encoded, first_windows(encoded.windows))

    def encode(self, texts: Sequence[Text]) -> EncodedSentences:
        """As `encode_in_graph`, for Python strings; raises InputError if an item is not a text."""
        return self._encode(tf.constant(encode_texts(texts, self.max_bytes), tf.string))

    def lengths(self, encoded: EncodedSentences) -> np.ndarray:
        """Tokens of each window, int64 [R]."""
        return encoded.windows.sequences.row_lengths().numpy()

    def features(self, encoded: EncodedSentences, rows: np.ndarray | None = None) -> dict[str, Any]:
        """Features of an `encode` result, or of some of its rows."""
        return self._preprocessor.pad(
            encoded if rows is None else self._preprocessor.select_windows(encoded, rows)
        )


class TextVectors:
    """Computes unit vectors of texts; the dot product of two vectors is their cosine.

    Args:
        bundle: A model that encodes a text by itself, and its preprocessor.
        side: For a matcher, "a" for queries, "b" for documents; relevant if they have separate encoders.

    Call:
        texts: Texts; long ones are truncated as they are for predictions.
        Returns float32 [R, D].

    Raises:
        InputError: The model reads two texts as one sequence, or an item is not a text.
    """

    def __init__(self, bundle: TextModel, side: str = "b"):
        model = bundle.model
        check_has_vectors(model)
        reads_sentences = isinstance(bundle.preprocessor, SentencePreprocessor)
        reader: Any = SentenceReader(bundle) if reads_sentences else TextReader(bundle, side)
        self._model, self._reader = model, reader
        self.dim: int = model.vector_dim
        sides = {"side": side} if bundle.preprocessor.num_texts == 2 else {}
        self._vectors = tf.function(
            lambda features: model.vectors(features, **sides), reduce_retracing=True, autograph=False
        )
        # A single query goes from string to vector in one graph: eager steps in between would dominate its latency.
        self._vector = tf.function(
            lambda texts: model.vectors(reader.features(reader.encode_in_graph(texts)), **sides),
            input_signature=[tf.TensorSpec([1], tf.string)],
            autograph=False,
        )

    def __call__(self, texts: Sequence[Text]) -> np.ndarray:
        """See the class."""
        parts = [self._chunk(texts[i : i + CHUNK_ROWS]) for i in range(0, len(texts), CHUNK_ROWS)]
        return np.concatenate(parts) if parts else np.zeros((0, self.dim), np.float32)

    def stream(self, texts: Iterator[Text]) -> Iterator[tuple[list[Text], np.ndarray]]:
        """Yields chunks of a stream of texts with their vectors, float32 [r, D]."""
        for chunk in chunks(texts, CHUNK_ROWS):
            yield chunk, self(chunk)

    def _chunk(self, texts: Sequence[Text]) -> np.ndarray:
        if len(texts) == 1:
            return self._vector(tf.constant(encode_texts(texts, self._reader.max_bytes), tf.string)).numpy()
        encoded = self._reader.encode(texts)
        vectors = np.zeros((len(texts), self.dim), np.float32)
        tokens = computed_tokens(self._model, self._reader.lengths(encoded))
        for rows in length_batches(tokens, BATCH_TOKENS):
            vectors[rows] = self._vectors(self._reader.features(encoded, rows)).numpy()
        return vectors


def check_has_vectors(model: Any) -> None:
    """Raises InputError if the model does not encode each text by itself."""
    if getattr(model, "form", "") == "joint":
        raise InputError(
            "expected a model that encodes each text by itself, got a matcher of the joint form, which reads two as one"
        )
