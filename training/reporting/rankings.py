"""What only pairs have: scores of matches beside others, queries ranked worst, numbers guessed worst."""

from collections.abc import Iterator

import numpy as np

from training.reporting import figures as pictures
from training.reporting.answered_items import SHOWN, cut, place_of
from training.reporting.blocks import Block, Table, score
from training.reporting.matplotlib_style import can_draw
from training.reporting.report_data import ReportData


def rankings(report_data: ReportData) -> Iterator[Block | None]:
    """Pictures and tables of scores; nothing of classes."""
    if report_data.target not in ("binary", "graded"):
        return
    asked = report_data.evaluated
    targets = report_data.task.targets(asked.part, report_data.labels)
    found = np.asarray(asked.answers, np.float64)[:, 0]
    if report_data.graded:
        if can_draw() and len(found):
            yield pictures.guesses(targets[:, 0], found)
        yield _worst_guesses(report_data, targets[:, 0].astype(np.float64), found)
    elif report_data.thresholds is not None and can_draw():
        right = targets[:, 0] > 0
        yield pictures.two_scores(found[~right], found[right], float(report_data.thresholds[0]))
    if asked.part.examples.named_queries:
        yield _worst_queries(report_data, targets, found)


def _worst_guesses(report_data: ReportData, expected: np.ndarray, found: np.ndarray) -> Table | None:
    places = np.argsort(-np.abs(found - expected), kind="stable")[:SHOWN]
    rows = [
        (
            *_texts(report_data, int(place)),
            f"{expected[place]:g}",
            f"{found[place]:.3f}",
            _place(report_data, int(place)),
        )
        for place in places
    ]
    columns = ("text a", "text b", "expected", "guessed", "place")
    return Table("Guesses that are furthest off", columns, rows, frozenset((0, 1))) if rows else None


def _worst_queries(report_data: ReportData, targets: np.ndarray, found: np.ndarray) -> Table | None:
    """Of each query the candidate that comes first and the best of the right ones; the worst queries first."""
    relevance, queries = targets[:, 0], targets[:, 1].astype(np.int64)
    # Of equal scores the less relevant come first, as in the scores of rankings.
    order = np.lexsort((relevance, -found, queries))
    starts = np.flatnonzero(np.diff(queries[order], prepend=-1))
    evaluated, wrong = 0, []
    for places in np.split(order, starts[1:]):
        right = np.flatnonzero(relevance[places] > 0)
        evaluated += len(right) > 0
        if len(right) and right[0]:
            wrong.append((int(right[0]), places))
    # A long list is easier to stand last in.
    wrong.sort(key=lambda each: (-each[0] / len(each[1]), -each[0]))
    rows = []
    for rank, places in wrong[:SHOWN]:
        first, right = int(places[0]), int(places[rank])
        query, answer = _texts(report_data, right)
        shown = query, answer, _texts(report_data, first)[1], f"{rank + 1} of {len(places)}"
        rows.append((*shown, score(found[right]), score(found[first]), _place(report_data, right)))
    columns = ("query", "best right answer", "what comes first", "rank", "score", "of the first", "place")
    caption = f"Queries whose right answers come late: {len(wrong):,} of {evaluated:,} have a wrong one first"
    return Table(caption, columns, rows, frozenset((0, 1, 2))) if rows else None


def _texts(report_data: ReportData, place: int) -> tuple[str, ...]:
    part = report_data.evaluated.part
    row = part.rows[place : place + 1]
    return tuple(cut(part.examples.read_texts(row, field)[0]) for field in (0, 1))


def _place(report_data: ReportData, place: int) -> str:
    part = report_data.evaluated.part
    return place_of(part, int(part.rows[place]))
