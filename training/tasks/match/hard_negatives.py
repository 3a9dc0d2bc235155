"""Hard negatives: pairs of a query and the wrong candidates that are most similar to it."""

import itertools
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kmha.bundle.manifest import MATCH, MODEL_NAMES
from kmha.errors import InputError
from training.baselines.bm25 import SCORES_AT_ONCE, Bm25, best_rows, choose_analyzer
from training.io.examples import Subset
from training.tasks.settings import BM25

logger = logging.getLogger("kmha")

Pairs = Iterable[tuple[int, int]] | np.ndarray


class ComparableRows(NamedTuple):
    """Rows that a loss can compare."""

    rows: np.ndarray  # bool [R]; false for all rows of skipped queries
    skipped_queries: int  # queries without the candidates that the loss needs


def comparable_rows(values: np.ndarray, queries: np.ndarray, loss: str) -> ComparableRows:
    """Finds the rows of queries with enough candidates for a loss of `training.losses.pairs`.

    A query needs
        triplet: a right and a wrong candidate;
        listwise: a right candidate and another one, right or wrong;
        contrastive: a right candidate; the wrong ones come from the batch.
    A row is right if its value, float [R], is above 0. Rows whose query, int [R], is negative are never used. Raises
    ValueError if the lengths differ, or the loss is unknown.
    """
    values, queries = np.asarray(values), np.asarray(queries, np.int64)
    if values.ndim != 1 or values.shape != queries.shape:
        raise ValueError(f"expected values and queries of one shape [R], got {values.shape}, {queries.shape}")
    numbers, position = np.unique(queries, return_inverse=True)
    candidates = np.bincount(position, minlength=len(numbers))
    right = np.bincount(position, weights=values > 0, minlength=len(numbers))
    if loss == "triplet":
        useful = (right > 0) & (right < candidates)
    elif loss == "listwise":
        useful = (right > 0) & (candidates > 1)
    elif loss == "contrastive":
        useful = right > 0
    else:
        raise ValueError(f"expected triplet, listwise or contrastive, got {loss!r}")
    is_query = numbers >= 0
    useful &= is_query
    return ComparableRows(useful[position], int((is_query & ~useful).sum()))


def add_hard_negatives(
    part: Subset, rows: np.ndarray, targets: np.ndarray, how: str, count: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Adds pairs of value 0 to the training rows: `count` for each query that has a right candidate, at the ends.

    `rows` are the row of the set of each text, int64 [R, 2]; `targets` the value and number of the query, float32
    [R, 2]. `how` is "bm25", or a run folder of a matcher in the bi form; InputError if it cannot be used.
    """
    queries, candidates = part.texts(0), part.texts(1)
    known = np.stack([np.arange(len(rows)), np.arange(len(rows))], axis=1)
    right = known[targets[:, 0] > 0]
    if how == BM25:
        found = bm25_negatives(queries, candidates, right, count, seed, known)
    else:
        vectors = _load_vectors(Path(how), queries, candidates)
        found = vector_negatives(*vectors, queries, candidates, right, count, seed, known)
    logger.info(f"{len(found):,} hard negatives added for {len(np.unique(found[:, 0])):,} queries")
    more_rows = np.stack([rows[found[:, 0], 0], rows[found[:, 1], 1]], axis=1)
    more_targets = np.stack([np.zeros(len(found)), targets[found[:, 0], 1]], axis=1).astype(np.float32)
    return np.concatenate([rows, more_rows]), np.concatenate([targets, more_targets])


def _load_vectors(run: Path, queries: list[str], candidates: list[str]) -> tuple[np.ndarray, np.ndarray]:
    from kmha.bundle.bundle import Bundle
    from kmha.inference.retrieval import TextVectors

    try:
        bundle = Bundle.load(run)
        if bundle.task != MATCH or bundle.model.form != "bi":
            form = f" of the {bundle.model.form} form" if bundle.task == MATCH else ""
            raise InputError(
                f"expected a matcher of the bi form, which has text vectors, got {MODEL_NAMES[bundle.task]}{form}"
            )
        of_a, of_b = TextVectors(bundle, "a"), TextVectors(bundle, "b")
        return _vectors_of(of_a, queries), _vectors_of(of_b, candidates)
    except InputError as error:
        raise InputError(f"--match.hard-negatives {run}: {error}") from error


def _vectors_of(vectors: Any, texts: list[str]) -> np.ndarray:
    """The vector of each text; equal texts are computed once."""
    numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    return vectors(list(numbers))[[numbers[text] for text in texts]]


def bm25_negatives(
    queries: Sequence[str], candidates: Sequence[str], right: Pairs, count: int, seed: int, known: Pairs = ()
) -> np.ndarray:
    """Finds the wrong candidates that BM25 scores highest.

    The result is int64 [M, 2], pairs of a query's and a candidate's index; queries in their order, best candidate
    first. Raises ValueError for an index outside the texts.

    Args:
        queries: Q texts.
        candidates: C texts.
        right: Pairs of a query's index and the index of a right candidate. Other queries get no negatives.
        count: Negatives per query; fewer if there are not enough wrong candidates.
        seed: Breaks ties, also between candidates that share no term with the query.
        known: Labeled pairs, right or wrong, that are excluded.
    """
    search = _Search(queries, candidates, right, known, seed)
    collection = [candidates[int(index)] for index in search.candidate_indices]
    texts = [queries[int(index)] for index in search.query_indices]
    bm25 = Bm25.fit(collection, choose_analyzer([*collection, *texts]))
    return search.best(bm25.score_chunks(texts), count)


def vector_negatives(
    query_vectors: np.ndarray,
    candidate_vectors: np.ndarray,
    queries: Sequence[str],
    candidates: Sequence[str],
    right: Pairs,
    count: int,
    seed: int,
    known: Pairs = (),
) -> np.ndarray:
    """Finds the wrong candidates whose vectors have the highest cosine with that of the query.

    The vectors are float [Q, D] and [C, D] of any length, zeros included; for the rest see `bm25_negatives`.
    """
    if len(query_vectors) != len(queries) or len(candidate_vectors) != len(candidates):
        raise ValueError(
            f"expected a vector for each of {len(queries)} queries and {len(candidates)} candidates, "
            f"got {len(query_vectors)} and {len(candidate_vectors)}"
        )
    search = _Search(queries, candidates, right, known, seed)
    vectors = _directions(query_vectors[search.query_indices])
    collection = _directions(candidate_vectors[search.candidate_indices])
    rows = max(1, SCORES_AT_ONCE // max(1, len(collection)))
    chunks = (vectors[start : start + rows] @ collection.T for start in range(0, len(vectors), rows))
    return search.best(chunks, count)


class _Search:
    """The distinct queries and candidates, and the candidates that are excluded for each query."""

    def __init__(
        self, queries: Sequence[str], candidates: Sequence[str], right: Pairs, known: Pairs, seed: int
    ):
        right, known = (_pairs(each, len(queries), len(candidates)) for each in (right, known))
        with_positives = {queries[int(query)] for query in right[:, 0]}
        first_query, first_candidate = _first_indices(queries), _first_indices(candidates)
        chosen = [index for text, index in first_query.items() if text in with_positives]
        self.query_indices = np.array(chosen, np.int64)
        # Ties go to the first candidate: shuffled, so that it is not always from the first rows of the file.
        firsts = np.array(list(first_candidate.values()), np.int64)
        self.candidate_indices = np.random.default_rng(seed).permutation(firsts)
        columns = {candidates[int(index)]: column for column, index in enumerate(self.candidate_indices)}
        self._excluded: dict[str, set[int]] = {
            text: {columns[text]} if text in columns else set() for text in with_positives
        }
        for query, candidate in np.concatenate([right, known]):
            if queries[int(query)] in with_positives:
                self._excluded[queries[int(query)]].add(columns[candidates[int(candidate)]])
        self._texts = [queries[int(index)] for index in self.query_indices]

    def best(self, score_chunks: Iterable[np.ndarray], count: int) -> np.ndarray:
        """The best allowed candidates, from scores [few, candidates] in query order; overwrites the scores."""
        best = [np.zeros((0, 2), np.int64)]
        rows = itertools.chain.from_iterable(score_chunks)
        for index, text, scores in zip(self.query_indices, self._texts, rows, strict=True):
            scores[list(self._excluded[text])] = -np.inf
            allowed = min(count, len(scores) - len(self._excluded[text]))
            if allowed > 0:
                found = self.candidate_indices[best_rows(scores, allowed)]
                best.append(np.stack([np.full(allowed, index), found], axis=1))
        return np.concatenate(best)


def _first_indices(texts: Sequence[str]) -> dict[str, int]:
    first: dict[str, int] = {}
    for index, text in enumerate(texts):
        first.setdefault(text, index)
    return first


def _pairs(pairs: Pairs, num_queries: int, num_candidates: int) -> np.ndarray:
    found = np.array(pairs if isinstance(pairs, np.ndarray) else list(pairs), np.int64).reshape(-1, 2)
    if len(found) and (found.min() < 0 or (found >= (num_queries, num_candidates)).any()):
        raise ValueError(
            f"expected pairs of {num_queries} queries and {num_candidates} candidates, "
            f"got indices {found.min(axis=0).tolist()} to {found.max(axis=0).tolist()}"
        )
    return found


def _directions(vectors: np.ndarray) -> np.ndarray:
    """Normalized vectors, float32; zeros stay zeros."""
    vectors = np.asarray(vectors, np.float32)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, 1)
