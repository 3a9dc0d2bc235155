"""More wrong pairs for training: each query beside the training texts that look most like a right answer to it."""

from pathlib import Path
from typing import Any

import numpy as np

from kmha.errors import InputError
from kmha.manifest import A_MODEL, MATCH
from training.cli import say
from training.mining import bm25_negatives, vector_negatives
from training.tasks.match_settings import BM25
from training.tasks.task import Part


def with_hard_negatives(
    part: Part, rows: np.ndarray, targets: np.ndarray, how: str, count: int, seed: int
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
    say(f"{len(found):,} hard negatives added for {len(np.unique(found[:, 0])):,} queries")
    more_rows = np.stack([rows[found[:, 0], 0], rows[found[:, 1], 1]], axis=1)
    more_targets = np.stack([np.zeros(len(found)), targets[found[:, 0], 1]], axis=1).astype(np.float32)
    return np.concatenate([rows, more_rows]), np.concatenate([targets, more_targets])


def _vectors(run: Path, queries: list[str], candidates: list[str]) -> tuple[np.ndarray, np.ndarray]:
    from kmha.bundle import Bundle
    from kmha.vectors import TextVectors

    try:
        bundle = Bundle.load(run)
        if bundle.task != MATCH or bundle.model.form != "bi":
            form = f" of the {bundle.model.form} form" if bundle.task == MATCH else ""
            raise InputError(
                "wanted a matcher of the bi form, whose vectors say what is like what, given"
                f" {A_MODEL[bundle.task]}{form}"
            )
        return _spread(TextVectors(bundle, "a"), queries), _spread(TextVectors(bundle, "b"), candidates)
    except InputError as error:
        raise InputError(f"--match.hard-negatives {run}: {error}") from error


def _spread(vectors: Any, texts: list[str]) -> np.ndarray:
    """The vector of each text, equal ones computed once."""
    numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    return vectors(list(numbers))[[numbers[text] for text in texts]]
