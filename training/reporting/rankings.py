"""What only pairs have: scores of matches beside others, queries ranked worst, numbers guessed worst."""

from collections.abc import Iterator

import numpy as np

from training.ranking_scores import query_values
from training.reporting import pictures
from training.reporting.answered import SHOWN, cut
from training.reporting.content import Block, Table, score
from training.reporting.drawing import can_draw
from training.reporting.material import Material


def rankings(material: Material) -> Iterator[Block]:
    """Pictures and tables of scores; nothing of classes."""
    if material.target not in ("binary", "graded"):
        return
    asked = material.judged
    targets = material.task.targets(asked.part, material.labels)
    found = np.asarray(asked.answers, np.float64)[:, 0]
    if material.graded:
        if can_draw() and len(found):
            yield pictures.guesses(targets[:, 0], found)
        yield _worst_guesses(material, targets[:, 0].astype(np.float64), found)
    elif material.thresholds is not None and can_draw():
        right = targets[:, 0] > 0
        yield pictures.two_scores(found[~right], found[right], float(material.thresholds[0]))
    if asked.part.examples.named_queries:
        yield _worst_queries(material, targets, found)


def _worst_guesses(material: Material, wanted: np.ndarray, found: np.ndarray) -> Table | None:
    places = np.argsort(-np.abs(found - wanted), kind="stable")[:SHOWN]
    rows = [
        (
            *_texts(material, int(place)),
            f"{wanted[place]:g}",
            f"{found[place]:.3f}",
            _place(material, int(place)),
        )
        for place in places
    ]
    columns = ("text a", "text b", "wanted", "guessed", "place")
    return Table("Guesses that are furthest off", columns, rows, frozenset((0, 1))) if rows else None


def _worst_queries(material: Material, targets: np.ndarray, found: np.ndarray) -> Table | None:
    """Of each query the candidate that comes first and the best of the right ones; the worst queries first."""
    queries = targets[:, 1].astype(np.int64)
    relevance = targets[:, 0].astype(np.float64)
    judged = []
    for query in np.unique(queries):
        places = np.flatnonzero(queries == query)
        if not (relevance[places] > 0).any():
            continue
        reciprocal = query_values(relevance[places], found[places], queries[places]).values["mrr"][0]
        order = places[np.lexsort((relevance[places], -found[places]))]
        right = next(place for place in order if relevance[place] > 0)
        judged.append((reciprocal, len(judged), int(order[0]), int(right), len(places)))
    wrong = [each for each in sorted(judged) if each[0] < 1][:SHOWN]
    rows = []
    for reciprocal, _, first, right, candidates in wrong:
        query, answer = _texts(material, right)
        rank = f"{round(1 / reciprocal)} of {candidates}"
        other = _texts(material, first)[1]
        rows.append(
            (query, answer, other, rank, score(found[right]), score(found[first]), _place(material, right))
        )
    columns = ("query", "best right answer", "what comes first", "rank", "score", "of the first", "place")
    caption = f"Queries whose right answers come last, of {len(judged):,}"
    return Table(caption, columns, rows, frozenset((0, 1, 2))) if rows else None


def _texts(material: Material, place: int) -> tuple[str, ...]:
    part = material.judged.part
    row = part.rows[place : place + 1]
    return tuple(cut(part.examples.read_texts(row, field)[0]) for field in (0, 1))


def _place(material: Material, place: int) -> str:
    part = material.judged.part
    return part.examples.place(int(part.rows[place]))
