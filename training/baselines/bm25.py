"""Okapi BM25 with sparse matrices: scores of given pairs, and scores of a whole collection for each query.

The score of a document d for a query q is the sum over the terms of q (repeated terms count repeatedly) of

    log(1 + (N - n + .5) / (n + .5)) * f / (f + k1 * (1 - b + b * |d| / mean length)),

where f is the term's count in d and n the number of the N documents that contain it; k1 = 1.2, b = .75.

Source: Robertson and Zaragoza 2009, "The Probabilistic Relevance Framework: BM25 and Beyond", section 3.4. The "1 +" in
the logarithm is from Lucene's `BM25Similarity`; it makes all weights positive.

The library bm25s is not used because it scores only documents and terms of its index, not unseen ones.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse
from sklearn.feature_extraction.text import CountVectorizer

from training.baselines.text_linear import WORD_PATTERN, uses_characters

Analyzer = Callable[[str], list[str]]

_K1 = 1.2
_B = 0.75
_WORD = re.compile(WORD_PATTERN)
# Maximum scores in memory: 40 queries with 100,000 documents.
SCORES_AT_ONCE = 4_000_000


def word_terms(text: str) -> list[str]:
    """Lower-case words and punctuation marks."""
    return _WORD.findall(text.lower())


def character_terms(text: str) -> list[str]:
    """Lower-case characters and pairs of neighboring characters, without white space."""
    characters = "".join(text.lower().split())
    return [*characters, *map("".join, zip(characters, characters[1:], strict=False))]


def choose_analyzer(texts: Sequence[str]) -> Analyzer:
    """`character_terms` for scripts without spaces between words, else `word_terms`."""
    return character_terms if uses_characters(texts) else word_terms


@dataclass(frozen=True)
class Bm25:
    """A collection of N documents with V terms, made by `Bm25.fit`."""

    analyzer: Analyzer  # splits a text into terms
    vocabulary: dict[str, int]  # column of each term
    idf: np.ndarray  # inverse document frequency of each term, float64 [V]
    unseen_idf: float  # that of a term outside the collection
    mean_length: float  # terms of a document
    weights: sparse.csr_array  # contribution of each query term to each document's score, float32 [V, N]

    @classmethod
    def fit(cls, documents: Sequence[str], analyzer: Analyzer) -> "Bm25":
        """Counts the terms of the documents; there may be none, and documents may be empty."""
        counts, vocabulary = _count(documents, analyzer)
        num_documents = len(documents)
        frequencies = np.bincount(counts.indices, minlength=counts.shape[1])
        idf = _idf(frequencies, num_documents)
        mean_length = float(counts.sum()) / num_documents if num_documents else 0.0
        weights = _saturated(counts, mean_length)
        weights.data *= idf[weights.indices]
        unseen_idf = float(_idf(np.zeros(1), num_documents)[0])
        return cls(analyzer, vocabulary, idf, unseen_idf, mean_length, weights.T.tocsr().astype(np.float32))

    def scores(self, queries: Sequence[str], documents: Sequence[str]) -> np.ndarray:
        """Scores R pairs of a query and a document, inside or outside the collection: float64 [R], at least 0."""
        if len(queries) != len(documents):
            raise ValueError(f"expected a document for each query, got {len(queries)} and {len(documents)}")
        counts, vocabulary = _count([*queries, *documents], self.analyzer)
        idf = np.full(len(vocabulary), self.unseen_idf)
        for term, column in vocabulary.items():
            known = self.vocabulary.get(term)
            if known is not None:
                idf[column] = self.idf[known]
        in_documents = _saturated(counts[len(queries) :], self.mean_length)
        found = counts[: len(queries)].multiply(in_documents)
        return found @ idf if len(vocabulary) else np.zeros(len(queries))

    def score_chunks(self, queries: Sequence[str]) -> Iterator[np.ndarray]:
        """Yields the scores of all N documents for a few queries at a time: float32 [few, N], in order."""
        num_documents = self.weights.shape[1]
        rows = max(1, SCORES_AT_ONCE // max(1, num_documents))
        for start in range(0, len(queries), rows):
            counts = _count(queries[start : start + rows], self.analyzer, self.vocabulary)[0]
            yield (counts.astype(np.float32) @ self.weights).toarray()


def best_rows(scores: np.ndarray, k: int) -> np.ndarray:
    """The rows of the k highest of float [N] scores, int64 [k], best first; ties in their order."""
    least = np.partition(scores, len(scores) - k)[len(scores) - k]
    above = np.flatnonzero(scores > least)
    above = above[np.argsort(-scores[above], kind="stable")]
    return np.concatenate([above, np.flatnonzero(scores == least)[: k - len(above)]])


def _count(
    texts: Sequence[str], analyzer: Analyzer, vocabulary: dict[str, int] | None = None
) -> tuple[sparse.csr_array, dict[str, int]]:
    """Term counts float64 [R, V] and the vocabulary; without a vocabulary all terms are counted."""
    if vocabulary is None:
        vectorizer = CountVectorizer(analyzer=analyzer, dtype=np.float64)
        try:
            counts = vectorizer.fit_transform(texts)
        except ValueError:  # no text has a term
            return sparse.csr_array((len(texts), 0)), {}
        return sparse.csr_array(counts), vectorizer.vocabulary_
    if not vocabulary:
        return sparse.csr_array((len(texts), 0)), vocabulary
    vectorizer = CountVectorizer(analyzer=analyzer, vocabulary=vocabulary, dtype=np.float64)
    return sparse.csr_array(vectorizer.transform(texts)), vocabulary


def _idf(frequencies: np.ndarray, num_documents: int) -> np.ndarray:
    return np.log1p((num_documents - frequencies + 0.5) / (frequencies + 0.5))


def _saturated(counts: sparse.csr_array, mean_length: float) -> sparse.csr_array:
    """Each count f as f / (f + k1 * (1 - b + b * length / mean length))."""
    lengths = np.asarray(counts.sum(axis=1)).ravel()
    penalties = _K1 * (1 - _B + _B * lengths / (mean_length or 1.0))
    by_entry = np.repeat(penalties, np.diff(counts.indptr))
    shares = counts.data / (counts.data + by_entry)
    return sparse.csr_array((shares, counts.indices, counts.indptr), counts.shape)
