"""Okapi BM25 over sparse matrices: scores of given pairs, and the best documents of a collection for each query.

The score of a document d for a query q is the sum, over the terms of q (each as often as it stands there), of

    log(1 + (N - n + .5) / (n + .5)) * f / (f + k1 * (1 - b + b * |d| / mean length)),

with f the term's count in d and n the number of the N collected documents that hold it; k1 = 1.2, b = .75.
The sum is that of Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond" (2009), 3.4; the
"1 +" in the logarithm is Lucene's (`BM25Similarity`), so that no term counts against a document.

Libraries were looked at: bm25s scores only documents that stand in its index, one dense row a query, and gives no
score to a pair with an unseen document or an unseen term, which is what a baseline on test rows needs.
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
# At most this many scores are held at once; at 100,000 documents these are 40 queries.
SCORES_AT_ONCE = 4_000_000


def word_terms(text: str) -> list[str]:
    """Splits into lower-case words; punctuation marks are words too."""
    return _WORD.findall(text.lower())


def character_terms(text: str) -> list[str]:
    """Splits into lower-case characters and pairs of neighbouring characters; white space is left out."""
    characters = "".join(text.lower().split())
    return [*characters, *map("".join, zip(characters, characters[1:], strict=False))]


def suited_analyzer(texts: Sequence[str]) -> Analyzer:
    """Chooses characters for scripts that set no spaces between words, words for all others."""
    return character_terms if uses_characters(texts) else word_terms


@dataclass(frozen=True)
class Bm25:
    """A collection of N documents with V terms; `Bm25.fit` makes it.

    Attributes:
        analyzer: Gives the terms of a text.
        vocabulary: Term to column.
        idf: float64 [V], the weight of each term.
        unseen_idf: Weight of a term that no collected document holds.
        mean_length: Mean number of terms of a collected document.
        weights: float32 [V, N]: what a term of a query adds to each document's score.
    """

    analyzer: Analyzer
    vocabulary: dict[str, int]
    idf: np.ndarray
    unseen_idf: float
    mean_length: float
    weights: sparse.csr_array

    @classmethod
    def fit(cls, documents: Sequence[str], analyzer: Analyzer) -> "Bm25":
        """Counts the terms of the documents, which may be empty, or none at all."""
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
        """Scores each query against the document beside it.

        Args:
            queries: R texts.
            documents: R texts, which need not be in the collection. Terms outside the collection have the weight
                of a term that no document holds.

        Returns:
            float64 [R], 0 and up.

        Raises:
            ValueError: The lengths differ.
        """
        if len(queries) != len(documents):
            raise ValueError(f"expected a document for each query, got {len(queries)} and {len(documents)}")
        counts, vocabulary = _count([*queries, *documents], self.analyzer)
        idf = np.full(len(vocabulary), self.unseen_idf)
        for term, column in vocabulary.items():
            known = self.vocabulary.get(term)
            if known is not None:
                idf[column] = self.idf[known]
        asked, answers = counts[: len(queries)], _saturated(counts[len(queries) :], self.mean_length)
        return asked.multiply(answers) @ idf if len(vocabulary) else np.zeros(len(queries))

    def top(self, queries: Sequence[str], k: int) -> tuple[np.ndarray, np.ndarray]:
        """Finds the best documents of the collection for each query.

        Args:
            queries: Q texts.
            k: How many documents; fewer come back where the collection has fewer.

        Returns:
            Row numbers int64 [Q, k] and scores float32 [Q, k], best first. Of documents with equal scores
            the first in the collection comes first.
        """
        k = min(k, self.weights.shape[1])
        indices = np.zeros((len(queries), k), np.int64)
        scores = np.zeros((len(queries), k), np.float32)
        if not k:
            return indices, scores
        row = 0
        for chunk in self.score_chunks(queries):
            for found in chunk:
                indices[row] = best_rows(found, k)
                scores[row] = found[indices[row]]
                row += 1
        return indices, scores

    def score_chunks(self, queries: Sequence[str]) -> Iterator[np.ndarray]:
        """Yields the scores of all N documents for some queries at a time: float32 [some, N], in order."""
        num_documents = self.weights.shape[1]
        rows = max(1, SCORES_AT_ONCE // max(1, num_documents))
        for start in range(0, len(queries), rows):
            asked = _count(queries[start : start + rows], self.analyzer, self.vocabulary)[0]
            yield (asked.astype(np.float32) @ self.weights).toarray()


def best_rows(scores: np.ndarray, k: int) -> np.ndarray:
    """Gives the rows of the k highest of float [N] scores, int64 [k], best first; of equals the first ones."""
    least = np.partition(scores, len(scores) - k)[len(scores) - k]
    above = np.flatnonzero(scores > least)
    above = above[np.argsort(-scores[above], kind="stable")]
    return np.concatenate([above, np.flatnonzero(scores == least)[: k - len(above)]])


def _count(
    texts: Sequence[str], analyzer: Analyzer, vocabulary: dict[str, int] | None = None
) -> tuple[sparse.csr_array, dict[str, int]]:
    """Counts terms, float64 [R, V]; without a vocabulary, of all terms that occur."""
    if vocabulary is None:
        vectorizer = CountVectorizer(analyzer=analyzer, dtype=np.float64)
        try:
            counts = vectorizer.fit_transform(texts)
        except ValueError:  # no text, or none that holds a term
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
    return sparse.csr_array(
        (counts.data / (counts.data + by_entry), counts.indices, counts.indptr), counts.shape
    )
