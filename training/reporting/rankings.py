"""Report blocks of pairs: histogram of scores, queries with the worst ranking, largest errors of graded targets."""

from collections.abc import Iterator

import numpy as np

from training.reporting import figures
from training.reporting.blocks import Block, Table, format_score
from training.reporting.matplotlib_style import can_draw
from training.reporting.report_data import ReportData
from training.reporting.scored_items import SHOWN, row_location, truncate


def pair_blocks(report_data: ReportData) -> Iterator[Block | None]:
    """Pictures and tables of scores; none for matchers of classes."""
    if report_data.target not in ("binary", "graded"):
        return
    split = report_data.evaluated
    targets = report_data.task.targets(split.part, report_data.labels)
    scores = np.asarray(split.predictions, np.float64)[:, 0]
    if report_data.is_graded:
        if can_draw() and len(scores):
            yield figures.scatter(targets[:, 0], scores)
        yield _largest_errors(report_data, targets[:, 0].astype(np.float64), scores)
    elif report_data.thresholds is not None and can_draw():
        positive = targets[:, 0] > 0
        threshold = float(report_data.thresholds[0])
        yield figures.score_histogram(scores[~positive], scores[positive], threshold)
    if split.part.examples.named_queries:
        yield _worst_queries(report_data, targets, scores)


def _largest_errors(report_data: ReportData, expected: np.ndarray, predicted: np.ndarray) -> Table | None:
    places = np.argsort(-np.abs(predicted - expected), kind="stable")[:SHOWN].tolist()
    rows = [
        (
            *_texts(report_data, place),
            f"{expected[place]:g}",
            f"{predicted[place]:.3f}",
            _location(report_data, place),
        )
        for place in places
    ]
    columns = ("text a", "text b", "expected", "predicted", "location")
    return Table("Largest errors", columns, rows, frozenset((0, 1))) if rows else None


def _worst_queries(report_data: ReportData, targets: np.ndarray, scores: np.ndarray) -> Table | None:
    """The first candidate and the best relevant candidate of each query; the worst queries first."""
    relevance, queries = targets[:, 0], targets[:, 1].astype(np.int64)
    # Of equal scores the less relevant come first, as in ranking metrics.
    order = np.lexsort((relevance, -scores, queries))
    starts = np.flatnonzero(np.diff(queries[order], prepend=-1))
    evaluated, wrong = 0, []
    for places in np.split(order, starts[1:]):
        relevant = np.flatnonzero(relevance[places] > 0)
        evaluated += len(relevant) > 0
        if len(relevant) and relevant[0]:
            wrong.append((int(relevant[0]), places))
    # By the rank relative to the number of candidates.
    wrong.sort(key=lambda each: (-each[0] / len(each[1]), -each[0]))
    rows = []
    for rank, places in wrong[:SHOWN]:
        first, best = int(places[0]), int(places[rank])
        shown = *_texts(report_data, best), _texts(report_data, first)[1], f"{rank + 1} of {len(places)}"
        numbers = format_score(scores[best]), format_score(scores[first])
        rows.append((*shown, *numbers, _location(report_data, best)))
    columns = ("query", "best relevant", "ranked first", "rank", "score", "score of the first", "location")
    caption = f"Worst queries: {len(wrong):,} of {evaluated:,} have an irrelevant candidate first"
    return Table(caption, columns, rows, frozenset((0, 1, 2))) if rows else None


def _texts(report_data: ReportData, place: int) -> tuple[str, ...]:
    part = report_data.evaluated.part
    row = part.rows[place : place + 1]
    return tuple(truncate(part.examples.read_texts(row, field)[0]) for field in (0, 1))


def _location(report_data: ReportData, place: int) -> str:
    part = report_data.evaluated.part
    return row_location(part, int(part.rows[place]))
