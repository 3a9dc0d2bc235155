"""Ranks a fixed list of candidate texts for a query; each text is encoded once where the matcher's form allows it."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from kmha.errors import InputError
from kmha.inference.batching import BATCH_TOKENS, TextRow, encode_texts, length_batches
from kmha.inference.vectors import TextModel, TextReader, TextVectors
from kmha.models.matcher import TextMatcher


class PairScorer(TextModel, Protocol):
    """What `Ranker` needs of a bundle."""

    def probabilities(self, texts: Sequence[TextRow]) -> np.ndarray:
        """Scores of pairs of texts, float32 [R, 1]."""
        ...


class Ranked(NamedTuple):
    """A ranked candidate.

    Attributes:
        index: Index in the list of candidates.
        score: Score for the query.
    """

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
    """Logits float32 [B, 1] of a query with each candidate, in the cross form.

    Args:
        model: A `TextMatcher`.
        query_features: Features of the query, int32 [1, T].
        encoded: Output of `model.encode` for the query.
        features: Features of the candidates, int32 [B, S].
    """
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

    def __init__(
        self, bundle: PairScorer, candidates: Sequence[str | bytes], vectors: np.ndarray | None = None
    ):
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
            self._encode = tf.function(
                lambda features: bundle.model.encode(features, "a"), reduce_retracing=True, autograph=False
            )
            self._compare = tf.function(self._compared, reduce_retracing=True, autograph=False)

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
        """Candidates in descending order of score, ties in the order of the list.

        Args:
            query: A text.
            top: Number of candidates; 0: all.
        """
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
