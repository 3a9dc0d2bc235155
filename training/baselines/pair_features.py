"""Overlap features of two texts, the input of the linear baseline of matching.

Terms are words, or characters in scripts without spaces between words. Numbers and capitalized words also have separate
features, because differences in them change the meaning most.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse
from sklearn.feature_extraction.text import TfidfVectorizer

from training.baselines.bm25 import Analyzer, Bm25, character_terms, word_terms
from training.baselines.text_linear import WORD_PATTERN, uses_characters

_ORDERS = (1, 2, 3)
# Each order has three overlap fractions; trigrams are too rare for weights.
_WEIGHTED_ORDERS = (1, 2)
_SHARES = ("in both, of all", "in both, of a", "in both, of b")
_NAMED = ("numbers", "capitalized words")
FEATURE_NAMES = (
    *(f"{order}-grams {share}" for order in _ORDERS for share in _SHARES),
    *(f"{order}-grams {share}, weighted" for order in _WEIGHTED_ORDERS for share in _SHARES),
    "tf-idf cosine of words",
    "tf-idf cosine of characters",
    "bm25 of b for a",
    "bm25 of a for b",
    "log length of a",
    "log length of b",
    "log length ratio",
    "log length difference",
    *(f"log {kind} {where}" for kind in _NAMED for where in ("in both", "in a alone", "in b alone")),
    "equal texts",
)
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_LETTERS = re.compile(r"[^\W\d_]\w*")
_ROWS_AT_ONCE = 10_000
# Enough for the frequencies of character n-grams, which need most of the time and memory.
_TEXTS_FOR_CHARACTERS = 50_000
# The key of an n-gram: three term ids of 21 bits in 63 bits. More than two million terms share ids.
_TERM_BITS = 21


@dataclass(frozen=True)
class PairFeatures:
    """Term statistics of the training texts, made by `PairFeatures.fit`."""

    characters: bool  # whether terms are characters
    num_texts: int  # different training texts
    term_ids: dict[str, int]
    # For each order of weighted n-grams the sorted keys int64 [K] and their document frequencies.
    frequencies: tuple[tuple[np.ndarray, np.ndarray], ...]
    words: TfidfVectorizer  # words, or characters and pairs of characters
    pieces: TfidfVectorizer  # 3 to 5 characters of words, or one to three characters
    bm25: Bm25

    @classmethod
    def fit(cls, texts: Iterable[str]) -> "PairFeatures":
        """Counts the terms of the distinct training texts; raises ValueError if no text has a term."""
        distinct = list(dict.fromkeys(texts))
        characters = uses_characters(distinct)
        ids, rows, term_ids = _encode(distinct, _unit(characters), {})
        frequencies = []
        for order in _WEIGHTED_ORDERS:
            keys, places = _keys(ids, rows, order)
            present = np.unique(np.stack([places, keys]), axis=1)[1]
            frequencies.append(np.unique(present, return_counts=True))
        if characters:
            words = TfidfVectorizer(analyzer="char", ngram_range=(1, 2))
            pieces = TfidfVectorizer(analyzer="char", ngram_range=(1, 3))
        else:
            words = TfidfVectorizer(token_pattern=WORD_PATTERN)
            pieces = TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 5))
        words.fit(distinct)
        pieces.fit(distinct[:: -(-len(distinct) // _TEXTS_FOR_CHARACTERS)])
        bm25 = Bm25.fit(distinct, character_terms if characters else word_terms)
        return cls(characters, len(distinct), term_ids, tuple(frequencies), words, pieces, bm25)

    def matrix(self, a: Sequence[str], b: Sequence[str]) -> np.ndarray:
        """Features of R pairs, finite float64 [R, F] in the order of `FEATURE_NAMES`."""
        if len(a) != len(b):
            raise ValueError(f"expected a text b for each text a, got {len(a)} and {len(b)}")
        starts = range(0, len(a), _ROWS_AT_ONCE)
        chunks = [self._chunk(a[row : row + _ROWS_AT_ONCE], b[row : row + _ROWS_AT_ONCE]) for row in starts]
        return np.concatenate(chunks) if chunks else np.zeros((0, len(FEATURE_NAMES)))

    def _chunk(self, a: Sequence[str], b: Sequence[str]) -> np.ndarray:
        distinct, of_a, of_b = _distinct(a, b)
        ids, rows, _ = _encode(distinct, _unit(self.characters), self.term_ids)
        plain, weighted = [], []
        for order in _ORDERS:
            columns, holds = _presence(*_keys(ids, rows, order), len(distinct))
            in_a, in_b = holds[of_a], holds[of_b]
            plain += _shares(*_overlap(in_a, in_b, np.ones(len(columns))))
            if order in _WEIGHTED_ORDERS:
                weights = self._weights(columns, *self.frequencies[_WEIGHTED_ORDERS.index(order)])
                weighted += _shares(*_overlap(in_a, in_b, weights))
        lengths = np.bincount(rows, minlength=len(distinct)).astype(np.float64)
        length_a, length_b = lengths[of_a], lengths[of_b]
        log_a, log_b = np.log1p(length_a), np.log1p(length_b)
        named = []
        for analyzer in (_NUMBER.findall, _capitalized):
            ids, rows, _ = _encode(distinct, analyzer, {})
            columns, holds = _presence(ids, rows, len(distinct))
            both, all_a, all_b = _overlap(holds[of_a], holds[of_b], np.ones(len(columns)))
            named += [np.log1p(both), np.log1p(all_a - both), np.log1p(all_b - both)]
        return np.stack(
            [
                *plain,
                *weighted,
                *(_cosines(vectorizer, distinct, of_a, of_b) for vectorizer in (self.words, self.pieces)),
                self.bm25.scores(a, b),
                self.bm25.scores(b, a),
                log_a,
                log_b,
                log_a - log_b,
                np.log1p(np.abs(length_a - length_b)),
                *named,
                (of_a == of_b).astype(np.float64),
            ],
            axis=1,
        )

    def _weights(self, columns: np.ndarray, keys: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Inverse document frequencies of n-grams by their keys; unseen n-grams have the highest."""
        if not len(keys):
            return np.full(len(columns), 1 + np.log(self.num_texts + 1))
        places = np.minimum(np.searchsorted(keys, columns), len(keys) - 1)
        found = np.where(keys[places] == columns, counts[places], 0)
        return 1 + np.log((self.num_texts + 1) / (found + 1))


def _unit(characters: bool) -> Analyzer:
    return _characters if characters else word_terms


def _characters(text: str) -> list[str]:
    return list("".join(text.lower().split()))


def _capitalized(text: str) -> list[str]:
    return [word for word in _LETTERS.findall(text) if word[0].isupper()]


def _distinct(a: Sequence[str], b: Sequence[str]) -> tuple[list[str], np.ndarray, np.ndarray]:
    """The distinct texts, and the index of each a and each b among them; repeated queries are read once."""
    places: dict[str, int] = {}
    of_both = np.array([places.setdefault(text, len(places)) for text in (*a, *b)], np.int64)
    return list(places), of_both[: len(a)], of_both[len(a) :]


def _encode(
    texts: Sequence[str], analyzer: Analyzer, known: dict[str, int]
) -> tuple[np.ndarray, np.ndarray, dict[str, int]]:
    """Ids of all terms and the rows of their texts, int64 [T] each, and the ids of terms that are not in `known`."""
    new: dict[str, int] = {}
    ids, lengths = [], []
    for text in texts:
        terms = analyzer(text)
        lengths.append(len(terms))
        for term in terms:
            number = known.get(term)
            ids.append(new.setdefault(term, len(known) + len(new)) if number is None else number)
    return np.array(ids, np.int64), np.repeat(np.arange(len(texts)), lengths), new


def _keys(ids: np.ndarray, rows: np.ndarray, order: int) -> tuple[np.ndarray, np.ndarray]:
    """The key of each n-gram, and the row of its text."""
    count = max(0, len(ids) - order + 1)
    ids = ids & ((1 << _TERM_BITS) - 1)
    keys = np.zeros(count, np.int64)
    for step in range(order):
        keys = (keys << _TERM_BITS) | ids[step : step + count]
    inside = rows[:count] == rows[order - 1 : order - 1 + count]
    return keys[inside], rows[:count][inside]


def _presence(keys: np.ndarray, rows: np.ndarray, num_rows: int) -> tuple[np.ndarray, sparse.csr_array]:
    """The distinct keys int64 [K], and whether each row has them, 0 or 1, sparse [num_rows, K]."""
    columns, places = np.unique(keys, return_inverse=True)
    ones, shape = np.ones(len(keys)), (num_rows, len(columns))
    holds = sparse.csr_array(sparse.coo_array((ones, (rows, places)), shape=shape))
    holds.sum_duplicates()
    holds.data[:] = 1.0
    return columns, holds


def _overlap(
    in_a: sparse.csr_array, in_b: sparse.csr_array, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Total weight of the terms in both texts, in a and in b, float64 [R] each."""
    return in_a.multiply(in_b) @ weights, in_a @ weights, in_b @ weights


def _shares(both: np.ndarray, all_a: np.ndarray, all_b: np.ndarray) -> list[np.ndarray]:
    """The overlap as a fraction of the union, of a and of b; 0 for a division by 0."""
    wholes = (all_a + all_b - both, all_a, all_b)
    return [np.divide(both, whole, out=np.zeros_like(both), where=whole > 0) for whole in wholes]


def _cosines(
    vectorizer: TfidfVectorizer, distinct: Sequence[str], of_a: np.ndarray, of_b: np.ndarray
) -> np.ndarray:
    if not len(distinct):
        return np.zeros(0)
    vectors = sparse.csr_array(vectorizer.transform(distinct))
    return np.asarray(vectors[of_a].multiply(vectors[of_b]).sum(axis=1)).ravel()
