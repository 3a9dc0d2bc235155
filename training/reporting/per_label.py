"""What a model makes of each label: precision, recall and F1 with intervals, the confusion matrix, confusions."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy.stats import binomtest

from kmha.bundle.manifest import TAG
from training.metrics.confusion import LabelCounts, f1, indicator_counts, matrix_counts, precision, recall
from training.reporting import figures as pictures
from training.reporting.blocks import Block, Note, Table, between, percent, score
from training.reporting.matplotlib_style import can_draw
from training.reporting.multi_label import several_labels
from training.reporting.report_data import ReportData

LEVEL = 0.95


def share_interval(hits: int, of: int) -> list[float]:
    """The interval of a share that was found to be hits / of, [lower, upper]; empty where there is nothing."""
    if not of:
        return []
    # The probability is asked of nothing here; what counts is the interval.
    return list(binomtest(int(hits), int(of)).proportion_ci(LEVEL, "wilson"))


def class_intervals(hits: int, given: int, actual: int) -> dict[str, list[float]]:
    """Intervals of "precision", "recall" and "f1" of a label, each [lower, upper], empty where it is undefined.

    Args:
        hits: How often it is both true and given.
        given: How often it is given.
        actual: How often it is true.
    """
    share = share_interval(hits, given + actual - hits)
    return {
        "precision": share_interval(hits, given),
        "recall": share_interval(hits, actual),
        "f1": [2 * end / (1 + end) for end in share],
    }


MISSED = "(none)"
MOST_CONFUSIONS = 12
_COLUMNS = {"F1": ("f1", f1), "precision": ("precision", precision), "recall": ("recall", recall)}


def labels(report_data: ReportData) -> Iterator[Block | None]:
    """The table of labels or types of spans, and their confusion matrix."""
    scores = report_data.scores
    per_label = scores.get("per_class") or scores.get("per_type")
    names = list(per_label) if per_label else ["0", "1"] if report_data.target == "binary" else []
    if not names:
        return
    if report_data.several_labels:
        found = several_labels(report_data, report_data.evaluated)
        yield _table(names, indicator_counts(found.true, found.given), "label")
        return
    matrix = np.array(scores["confusion_matrix"])
    task: Any = report_data.task
    what = "label" if report_data.kind != TAG else "tag" if task.given_scheme == "none" else "type"
    yield _table(names, matrix_counts(matrix), what)
    # Of spans one more, for those that were missed and those that nobody wanted.
    yield from _confusion(matrix, [*names, *[MISSED] * (len(matrix) - len(names))])


def _table(names: Sequence[str], counts: LabelCounts, what: str) -> Table:
    found = {name: value(counts) for name, value in _COLUMNS.values()}
    rows = []
    for place, name in enumerate(names):
        ends = class_intervals(*(int(each[place]) for each in counts))
        cells = (
            cell
            for key, _ in _COLUMNS.values()
            for cell in (score(float(found[key][place])), between(ends[key]))
        )
        rows.append((name, f"{int(counts.actual[place]):,}", *cells))
    columns = (what, "in the rows", *(cell for name in _COLUMNS for cell in (name, "95 %")))
    return Table(f"Each {what}, with Wilson intervals", columns, rows)


def _confusion(matrix: np.ndarray, names: list[str]) -> Iterator[Block | None]:
    if can_draw() and len(names) <= pictures.MOST_DRAWN:
        yield pictures.confusion(matrix, names, "label", "answer")
    elif can_draw():
        yield Note(
            f"A confusion matrix of {len(names)} labels is too large to be read; these are its largest cells."
        )
    wrong = matrix * (1 - np.eye(len(matrix), dtype=np.int64))
    order = np.argsort(-wrong, axis=None, kind="stable")[:MOST_CONFUSIONS]
    cells = [(int(place) // len(names), int(place) % len(names)) for place in order if wrong.flat[place]]
    totals = np.maximum(matrix.sum(axis=1), 1)
    rows = [
        (names[row], names[column], f"{wrong[row, column]:,}", percent(wrong[row, column] / totals[row]))
        for row, column in cells
    ]
    if rows:
        yield Table("Most frequent confusions", ("label", "answer", "times", "of the label"), rows)
