"""Unit vectors of texts, from any model that encodes a text by itself, and ranking of texts for a query."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from kmha.document_windows import computed_tokens
from kmha.errors import InputError
from kmha.features import SIDES
from kmha.inference.batching import (
    BATCH_TOKENS,
    CHUNK_ROWS,
    TEXTS,
    Text,
    chunks,
    encode_texts,
    graph_function,
    length_batches,
)
from kmha.models.matcher import TextMatcher
from kmha.text.sentence_preprocessor import EncodedSentences, SentencePreprocessor, first_windows


class TextReader:
    """Tokenizes single texts for a bundle of texts or of pairs, in which `side` is "a" or "b"."""

    def __init__(self, bundle: Any, side: str = "b"):
        number = SIDES.index(side) if bundle.preprocessor.num_texts == 2 else 0
        self._inputs = [each for each in bundle.preprocessor.inputs if each.text == number]
        self.max_bytes = bundle.preprocessor.max_bytes
        self._encode = graph_function(self.encode_in_graph, TEXTS)

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
    """Tokenizes texts for a tagger; a text is truncated to its first window, as other models truncate texts."""

    def __init__(self, bundle: Any):
        self._preprocessor: SentencePreprocessor = bundle.preprocessor
        # Enough for one window.
        self.max_bytes = self._preprocessor.part.max_bytes
        self._encode = graph_function(self.encode_in_graph, TEXTS)

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
        bundle: A `model` that encodes a text by itself and its `preprocessor`: a bundle, or a `TextEncoder`.
        side: For a matcher, "a" for queries, "b" for documents; relevant if they have separate encoders.

    Call:
        texts: Texts; long ones are truncated as they are for predictions.
        Returns float32 [R, D].

    Raises:
        InputError: The model reads two texts as one sequence, or an item is not a text.
    """

    def __init__(self, bundle: Any, side: str = "b"):
        model = bundle.model
        check_has_vectors(model)
        reads_sentences = isinstance(bundle.preprocessor, SentencePreprocessor)
        reader: Any = SentenceReader(bundle) if reads_sentences else TextReader(bundle, side)
        self._model, self._reader = model, reader
        self.dim: int = model.vector_dim
        sides = {"side": side} if bundle.preprocessor.num_texts == 2 else {}
        self._vectors = graph_function(lambda features: model.vectors(features, **sides))
        # A single query goes from string to vector in one graph: eager steps in between would dominate its latency.
        self._vector = graph_function(
            lambda texts: model.vectors(reader.features(reader.encode_in_graph(texts)), **sides),
            tf.TensorSpec([1], tf.string),
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


class Ranked(NamedTuple):
    """A candidate's index in the list, and its score for the query."""

    index: int
    score: float


def top_indices(scores: np.ndarray, top: int) -> np.ndarray:
    """Indices of the highest scores in descending order, ties by index: integers [min(top, N)]."""
    if top < len(scores):
        lowest = -np.partition(-scores, top - 1)[top - 1]
        candidates = np.flatnonzero(scores >= lowest)
        return candidates[np.argsort(-scores[candidates], kind="stable")][:top]
    return np.argsort(-scores, kind="stable")


def repeat_query(query_features: dict[str, Any], features: dict[str, Any]) -> dict[str, Any]:
    """Adds the features of one query, int32 [1, T], to those of each candidate, int32 [B, S]."""
    count = tf.shape(next(iter(features.values())))[0]
    return features | {name: tf.repeat(value, count, axis=0) for name, value in query_features.items()}


def compare_query(model: Any, query_features: dict[str, Any], encoded: Any, features: dict[str, Any]):
    """Logits float32 [B, 1] of a query (features [1, T], `encoded`) with candidates [B, S], in the cross form."""
    count = tf.shape(next(iter(features.values())))[0]
    repeated = [tf.repeat(each, count, axis=0) for each in encoded]
    return model.compare(repeat_query(query_features, features), repeated, model.encode(features, "b"))


class Ranker:
    """Ranks a fixed list of candidates for any query.

    The bi form computes the candidates' vectors once for all queries. The cross form encodes each query once for
    all candidates. The joint form reads every pair as a whole.

    Args:
        bundle: The bundle of a matcher that gives scores.
        candidates: Texts.
        vectors: Vectors of the candidates from `TextVectors`, float32 [N, D], in the bi form; None computes them.

    Raises:
        InputError: The bundle gives no scores, a candidate is not a text, or the vectors do not fit the candidates.
    """

    def __init__(self, bundle: Any, candidates: Sequence[str | bytes], vectors: np.ndarray | None = None):
        is_matcher = isinstance(bundle.model, TextMatcher)
        if not is_matcher or bundle.model.target == "classes":
            actual = "a matcher of classes" if is_matcher else "a classifier"
            raise InputError(f"ranking: expected a matcher that gives scores, got {actual}")
        self.bundle = bundle
        self.candidates = encode_texts(candidates, bundle.preprocessor.max_bytes)
        self.form = bundle.model.form
        # Equal texts are encoded once: in different batches their scores could differ in the last bit.
        distinct = {text: index for index, text in enumerate(dict.fromkeys(self.candidates))}
        self._texts = list(distinct)
        self._text_indices = np.array([distinct[text] for text in self.candidates], np.int64)
        if self.form == "bi":
            self._query_vectors = TextVectors(bundle, "a")
            if vectors is None:
                self._vectors = TextVectors(bundle, "b")(self._texts)
            else:
                _check_vectors(vectors, len(self.candidates), bundle.model.vector_dim)
                # Vectors may be a memory-mapped file: no copy if all texts are distinct.
                has_duplicates = len(self._texts) < len(self.candidates)
                first = np.unique(self._text_indices, return_index=True)[1]
                self._vectors = vectors[first] if has_duplicates else vectors
        elif vectors is not None:
            raise InputError(
                f"ranking: expected a matcher of the bi form for vectors, got the {self.form} form"
            )
        elif self.form == "cross":
            self._query_reader, self._reader = TextReader(bundle, "a"), TextReader(bundle, "b")
            self._sequences = self._reader.encode(self._texts)
            self._encode = graph_function(lambda features: bundle.model.encode(features, "a"))
            self._compare = graph_function(self._compared)

    def scores(self, query: str | bytes) -> np.ndarray:
        """Scores of all candidates for a query, float32 [N]; equal to the bundle's scores of the pairs."""
        if not self.candidates:
            return np.zeros(0, np.float32)
        if self.form == "bi":
            scores = self._bi_scores(query)
        elif self.form == "joint":
            scores = self.bundle.probabilities([(query, text) for text in self._texts])[:, 0]
        else:
            scores = self._cross_scores(query)
        return scores[self._text_indices]

    def rank(self, query: str | bytes, top: int = 0) -> list[Ranked]:
        """The best `top` candidates (0: all) in descending order of score, ties in the order of the list."""
        scores = self.scores(query)
        order = top_indices(scores, top or len(scores))
        return [Ranked(int(index), float(scores[index])) for index in order]

    def _bi_scores(self, query: str | bytes) -> np.ndarray:
        model = self.bundle.model
        cosines = self._vectors @ self._query_vectors([query])[0]
        logits = cosines * model.cosine_scale.numpy() + model.cosine_bias.numpy()
        return tf.sigmoid(logits).numpy() if model.target == "binary" else logits

    def _cross_scores(self, query: str | bytes) -> np.ndarray:
        features = self._query_reader.features(self._query_reader.encode([query]))
        encoded = self._encode(features)
        # The query is repeated for each candidate in the rounds of cross-attention.
        lengths = self._reader.lengths(self._sequences) + sum(each.shape[1] for each in encoded)
        scores = np.zeros(len(lengths), np.float32)
        for rows in length_batches(lengths, BATCH_TOKENS):
            candidates = self._reader.features(self._sequences, rows)
            scores[rows] = self._compare(features, encoded, candidates).numpy()
        return scores

    def _compared(self, query_features: Any, encoded: Any, features: Any):
        model = self.bundle.model
        return model.probabilities(compare_query(model, query_features, encoded, features))[:, 0]


def _check_vectors(vectors: np.ndarray, candidates: int, dim: int) -> None:
    if vectors.dtype != np.float32 or vectors.shape != (candidates, dim) or not np.isfinite(vectors).all():
        raise InputError(
            f"vectors: expected finite float32 of shape [{candidates}, {dim}], one for each candidate, got"
            f" {vectors.dtype} of shape {list(vectors.shape)}"
        )
