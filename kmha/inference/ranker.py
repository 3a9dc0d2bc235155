"""One query against many candidates: each text is read once, as far as the matcher's form allows."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from kmha.bundle.bundle import BATCH_TOKENS, Bundle
from kmha.bundle.manifest import MATCH
from kmha.errors import InputError
from kmha.inference.length_batches import length_batches
from kmha.inference.rows import checked_texts
from kmha.inference.vectors import TextReader, TextVectors


class Ranked(NamedTuple):
    """A candidate in its place.

    Attributes:
        index: Its number among the candidates, from 0.
        score: Its score for the query.
    """

    index: int
    score: float


def best_first(scores: np.ndarray, top: int) -> np.ndarray:
    """Places of the highest scores, best first, of equal ones the earlier first: integers [min(top, N)]."""
    if top < len(scores):
        least = -np.partition(-scores, top - 1)[top - 1]
        kept = np.flatnonzero(scores >= least)
        return kept[np.argsort(-scores[kept], kind="stable")][:top]
    return np.argsort(-scores, kind="stable")


def beside_each(query_features: dict[str, Any], features: dict[str, Any]) -> dict[str, Any]:
    """The features of one query, int32 [1, T], repeated beside those of every candidate, int32 [B, S]."""
    count = tf.shape(next(iter(features.values())))[0]
    return features | {name: tf.repeat(value, count, axis=0) for name, value in query_features.items()}


def compared_with_each(model: Any, query_features: dict[str, Any], encoded: Any, features: dict[str, Any]):
    """Logits float32 [B, 1] of a query with every candidate, in the cross form.

    Args:
        model: A `TextMatcher`.
        query_features: Of the query, int32 [1, T].
        encoded: What `model.encode` gave of them.
        features: Of the candidates, int32 [B, S].
    """
    count = tf.shape(next(iter(features.values())))[0]
    repeated = [tf.repeat(each, count, axis=0) for each in encoded]
    return model.compare(beside_each(query_features, features), repeated, model.encode(features, "b"))


class Ranker:
    """Ranks a fixed list of candidates for any query.

    In the bi form the candidates' vectors are computed once, for all queries. In the cross form the query is encoded
    once for all candidates. In the joint form every pair is read as a whole.

    Args:
        bundle: A matcher whose answer is a score.
        candidates: Texts.
        vectors: Of the candidates, in the bi form, such as `TextVectors` gives, float32 [N, D]; None computes them.

    Raises:
        InputError: The bundle gives no scores, a candidate is no text, or vectors are not those of the candidates.
    """

    def __init__(self, bundle: Bundle, candidates: Sequence[str | bytes], vectors: np.ndarray | None = None):
        if bundle.task != MATCH or bundle.model.target == "classes":
            given = "a matcher of classes" if bundle.task == MATCH else "a classifier"
            raise InputError(f"ranking: expected a matcher that gives scores, got {given}")
        self.bundle = bundle
        self.candidates = checked_texts(candidates, bundle.preprocessor.max_bytes)
        self.form = bundle.model.form
        # Equal texts are read once: in a batch their scores might differ in the last bit.
        distinct = {text: place for place, text in enumerate(dict.fromkeys(self.candidates))}
        self._texts = list(distinct)
        self._places = np.array([distinct[text] for text in self.candidates], np.int64)
        if self.form == "bi":
            self._query_vectors = TextVectors(bundle, "a")
            if vectors is None:
                self._vectors = TextVectors(bundle, "b")(self._texts)
            else:
                _check_vectors(vectors, len(self.candidates), bundle.model.vector_dim)
                # Vectors may be a mapped file: no copy where all texts differ.
                alike = len(self._texts) < len(self.candidates)
                self._vectors = vectors[np.unique(self._places, return_index=True)[1]] if alike else vectors
        elif vectors is not None:
            raise InputError(
                f"ranking: expected a matcher of the bi form for vectors, got the {self.form} form"
            )
        elif self.form == "cross":
            self._queries, self._readers = TextReader(bundle, "a"), TextReader(bundle, "b")
            self._cut = self._readers.cut(self._texts)
            self._encode = tf.function(
                lambda features: bundle.model.encode(features, "a"), reduce_retracing=True, autograph=False
            )
            self._compare = tf.function(self._compared, reduce_retracing=True, autograph=False)

    def scores(self, query: str | bytes) -> np.ndarray:
        """The score of every candidate for a query, float32 [N]: what the bundle gives each pair."""
        if not self.candidates:
            return np.zeros(0, np.float32)
        if self.form == "bi":
            scores = self._bi_scores(query)
        elif self.form == "joint":
            scores = self.bundle.probabilities([(query, text) for text in self._texts])[:, 0]
        else:
            scores = self._cross_scores(query)
        return scores[self._places]

    def rank(self, query: str | bytes, top: int = 0) -> list[Ranked]:
        """The candidates, best first; equal scores in the order given.

        Args:
            query: A text.
            top: How many; 0: all.
        """
        scores = self.scores(query)
        order = best_first(scores, top or len(scores))
        return [Ranked(int(index), float(scores[index])) for index in order]

    def _bi_scores(self, query: str | bytes) -> np.ndarray:
        model = self.bundle.model
        cosines = self._vectors @ self._query_vectors([query])[0]
        logits = cosines * model.cosine_scale.numpy() + model.cosine_bias.numpy()
        return tf.sigmoid(logits).numpy() if model.target == "binary" else logits

    def _cross_scores(self, query: str | bytes) -> np.ndarray:
        features = self._queries.features(self._queries.cut([query]))
        encoded = self._encode(features)
        # Beside each candidate stands the query once more, for the rounds.
        lengths = self._readers.lengths(self._cut) + sum(each.shape[1] for each in encoded)
        result = np.zeros(len(lengths), np.float32)
        for rows in length_batches(lengths, BATCH_TOKENS):
            result[rows] = self._compare(features, encoded, self._readers.features(self._cut, rows)).numpy()
        return result

    def _compared(self, query_features: Any, encoded: Any, features: Any):
        model = self.bundle.model
        return model.probabilities(compared_with_each(model, query_features, encoded, features))[:, 0]


def _check_vectors(vectors: np.ndarray, candidates: int, dim: int) -> None:
    if vectors.dtype != np.float32 or vectors.shape != (candidates, dim) or not np.isfinite(vectors).all():
        raise InputError(
            f"vectors: expected finite float32 of shape [{candidates}, {dim}], one of each candidate, got"
            f" {vectors.dtype} of shape {list(vectors.shape)}"
        )
