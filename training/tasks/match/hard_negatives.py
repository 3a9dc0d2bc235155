"""More wrong pairs for training: each query beside the training texts that look most like a right answer to it."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kmha.bundle.manifest import MATCH, MODEL_NAMES
from kmha.errors import InputError
from training.baselines.bm25 import SCORES_AT_ONCE, Bm25, best_rows, suited_analyzer
from training.data.types import Subset
from training.tasks.match.settings import BM25

logger = logging.getLogger("kmha")


class Teaching(NamedTuple):
    """What a loss can use.

    Attributes:
        rows: bool [R]; false for the rows of queries that it can learn nothing from.
        skipped_queries: How many such queries there are.
    """

    rows: np.ndarray
    skipped_queries: int


def teaching_rows(values: np.ndarray, queries: np.ndarray, loss: str) -> Teaching:
    """Finds the rows whose query gives a loss of `training.losses.pairs` something to learn.

    Needed is, of the candidates of a query,
        triplet: a right and a wrong one;
        listwise: a right one, and another, right or wrong;
        contrastive: a right one; the wrong ones come from the batch.

    Args:
        values: float [R]; a row is right where the value is above 0.
        queries: int [R]; in any order, rows with a negative number never teach and belong to no query.
        loss: triplet, listwise or contrastive.

    Raises:
        ValueError: The lengths differ, or the loss is none of these.
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
    real = numbers >= 0
    useful &= real
    return Teaching(useful[position], int((real & ~useful).sum()))


def with_hard_negatives(
    part: Subset, rows: np.ndarray, targets: np.ndarray, how: str, count: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Adds pairs of value 0.

    Args:
        part: The training rows.
        rows: int64 [R, 2], which row of the set each text is from.
        targets: float32 [R, 2]: value, and number of the query.
        how: "bm25", or a run folder of a matcher in the bi form.
        count: Hard negatives of each query that has a right answer.
        seed: Decides between equally good ones.

    Returns:
        Both arrays with what was found at their ends.

    Raises:
        InputError: The run folder cannot be used.
    """
    queries, candidates = part.texts(0), part.texts(1)
    known = np.stack([np.arange(len(rows)), np.arange(len(rows))], axis=1)
    right = known[targets[:, 0] > 0]
    if how == BM25:
        found = bm25_negatives(queries, candidates, right, count, seed, known)
    else:
        vectors = _vectors(Path(how), queries, candidates)
        found = vector_negatives(*vectors, queries, candidates, right, count, seed, known)
    logger.info(f"{len(found):,} hard negatives added for {len(np.unique(found[:, 0])):,} queries")
    more_rows = np.stack([rows[found[:, 0], 0], rows[found[:, 1], 1]], axis=1)
    more_targets = np.stack([np.zeros(len(found)), targets[found[:, 0], 1]], axis=1).astype(np.float32)
    return np.concatenate([rows, more_rows]), np.concatenate([targets, more_targets])


def _vectors(run: Path, queries: list[str], candidates: list[str]) -> tuple[np.ndarray, np.ndarray]:
    from kmha.bundle.bundle import Bundle
    from kmha.inference.vectors import TextVectors

    try:
        bundle = Bundle.load(run)
        if bundle.task != MATCH or bundle.model.form != "bi":
            form = f" of the {bundle.model.form} form" if bundle.task == MATCH else ""
            raise InputError(
                "expected a matcher of the bi form, whose vectors say what is like what, got"
                f" {MODEL_NAMES[bundle.task]}{form}"
            )
        return _spread(TextVectors(bundle, "a"), queries), _spread(TextVectors(bundle, "b"), candidates)
    except InputError as error:
        raise InputError(f"--match.hard-negatives {run}: {error}") from error


def _spread(vectors: Any, texts: list[str]) -> np.ndarray:
    """The vector of each text, equal ones computed once."""
    numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    return vectors(list(numbers))[[numbers[text] for text in texts]]


Pairs = Iterable[tuple[int, int]] | np.ndarray


def bm25_negatives(
    queries: Sequence[str],
    candidates: Sequence[str],
    right: Pairs,
    count: int,
    seed: int,
    known: Pairs = (),
) -> np.ndarray:
    """Finds the wrong candidates that BM25 scores highest.

    Args:
        queries: Q texts.
        candidates: C texts.
        right: Pairs of a query's index and the index of a right candidate. Queries without one get no negatives.
        count: How many negatives a query gets; fewer where there are not as many wrong candidates.
        seed: Decides between equal scores, so also between candidates that share no term with the query.
        known: Labelled pairs, right or wrong, which are not to be found once more.

    Returns:
        int64 [M, 2], pairs of a query's and a candidate's index; queries in their order, best candidate first.

    Raises:
        ValueError: An index outside the texts.
    """
    task = _Task(queries, candidates, right, known, seed)
    collection = [candidates[int(index)] for index in task.candidate_indices]
    asked = [queries[int(index)] for index in task.query_indices]
    bm25 = Bm25.fit(collection, suited_analyzer([*collection, *asked]))
    return task.mine(bm25.score_chunks(asked), count)


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
    """Finds the wrong candidates whose vectors have the highest cosine with the query's.

    Args:
        query_vectors: float [Q, D]; of any length, zeros included.
        candidate_vectors: float [C, D].
        queries: As for `bm25_negatives`, to know equal texts; so are the other arguments.
        candidates: See there.
        right: See there.
        count: See there.
        seed: See there.
        known: See there.

    Returns:
        int64 [M, 2], as `bm25_negatives`.

    Raises:
        ValueError: An index outside the texts, or not one vector for each text.
    """
    if len(query_vectors) != len(queries) or len(candidate_vectors) != len(candidates):
        raise ValueError(
            f"expected a vector for each of {len(queries)} queries and {len(candidates)} candidates, "
            f"got {len(query_vectors)} and {len(candidate_vectors)}"
        )
    task = _Task(queries, candidates, right, known, seed)
    asked = _directions(query_vectors[task.query_indices])
    collection = _directions(candidate_vectors[task.candidate_indices])
    rows = max(1, SCORES_AT_ONCE // max(1, len(collection)))
    chunks = (asked[start : start + rows] @ collection.T for start in range(0, len(asked), rows))
    return task.mine(chunks, count)


class _Task:
    """Which different query texts are answered from which different candidates, and what each may not get."""

    def __init__(
        self, queries: Sequence[str], candidates: Sequence[str], right: Pairs, known: Pairs, seed: int
    ):
        right, known = (
            _pairs(right, len(queries), len(candidates)),
            _pairs(known, len(queries), len(candidates)),
        )
        answered = {queries[int(query)] for query in right[:, 0]}
        first_query, first_candidate = _first_indices(queries), _first_indices(candidates)
        self.query_indices = np.array(
            [index for text, index in first_query.items() if text in answered], np.int64
        )
        # Equal scores go to the first of these: shuffled, so that they do not all go to the file's first rows.
        firsts = np.array(list(first_candidate.values()), np.int64)
        self.candidate_indices = np.random.default_rng(seed).permutation(firsts)
        columns = {candidates[int(index)]: column for column, index in enumerate(self.candidate_indices)}
        self._forbidden: dict[str, set[int]] = {
            text: {columns[text]} if text in columns else set() for text in answered
        }
        for query, candidate in np.concatenate([right, known]):
            if queries[int(query)] in answered:
                self._forbidden[queries[int(query)]].add(columns[candidates[int(candidate)]])
        self._asked = [queries[int(index)] for index in self.query_indices]

    def mine(self, score_chunks: Iterable[np.ndarray], count: int) -> np.ndarray:
        """Takes scores [some, different candidates] of the answered queries, in order; they are written over."""
        mined = [np.zeros((0, 2), np.int64)]
        for index, text, scores in zip(self.query_indices, self._asked, _rows(score_chunks), strict=True):
            scores[list(self._forbidden[text])] = -np.inf
            allowed = min(count, len(scores) - len(self._forbidden[text]))
            if allowed > 0:
                found = self.candidate_indices[best_rows(scores, allowed)]
                mined.append(np.stack([np.full(allowed, index), found], axis=1))
        return np.concatenate(mined)


def _rows(chunks: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    for chunk in chunks:
        yield from chunk


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
    """Vectors of length 1, float32; zeros stay zeros."""
    vectors = np.asarray(vectors, np.float32)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, 1)
