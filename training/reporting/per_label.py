"""Report blocks by label: precision, recall and F1 with intervals, and the confusion matrix."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy.stats import binomtest

from kmha.bundle.manifest import TAG
from training.metrics.confusion import LabelCounts, f1, indicator_counts, matrix_counts, precision, recall
from training.reporting import figures
from training.reporting.blocks import Block, Note, Table, format_interval, format_percent, format_score
from training.reporting.matplotlib_style import can_draw
from training.reporting.report_data import ReportData
from training.reporting.scored_items import multi_label_rows

LEVEL = 0.95
MISSED = "(none)"
MAX_CONFUSIONS = 12
_METRICS = {"f1": f1, "precision": precision, "recall": recall}


def wilson_interval(hits: int, total: int) -> list[float]:
    """The Wilson interval of hits / total, [lower, upper]; empty for a total of 0."""
    return list(binomtest(int(hits), int(total)).proportion_ci(LEVEL, "wilson")) if total else []


def class_intervals(hits: int, predicted: int, actual: int) -> dict[str, list[float]]:
    """Intervals of "precision", "recall" and "f1" of a label, each [lower, upper], empty if undefined.

    Args:
        hits: Number of correct predictions of the label.
        predicted: How often it is predicted.
        actual: How often it is true.
    """
    jaccard = wilson_interval(hits, predicted + actual - hits)
    return {
        "precision": wilson_interval(hits, predicted),
        "recall": wilson_interval(hits, actual),
        "f1": [2 * end / (1 + end) for end in jaccard],
    }


def label_blocks(report_data: ReportData) -> Iterator[Block | None]:
    """The table of labels or span types, and their confusion matrix."""
    scores = report_data.scores
    per_label = scores.get("per_class") or scores.get("per_type")
    names = list(per_label) if per_label else ["0", "1"] if report_data.target == "binary" else []
    if not names:
        return
    if report_data.is_multi_label:
        found = multi_label_rows(report_data, report_data.evaluated)
        yield _label_table(names, indicator_counts(found.true, found.predicted), "label")
        return
    matrix = np.array(scores["confusion_matrix"])
    task: Any = report_data.task
    kind = "label" if report_data.kind != TAG else "tag" if task.given_scheme == "none" else "type"
    yield _label_table(names, matrix_counts(matrix), kind)
    # Matrices of spans have one more row and column, for missed and for superfluous spans.
    yield from _confusion_blocks(matrix, [*names, *[MISSED] * (len(matrix) - len(names))])


def _label_table(names: Sequence[str], counts: LabelCounts, kind: str) -> Table:
    values = {name: metric(counts) for name, metric in _METRICS.items()}
    rows = []
    for place, name in enumerate(names):
        intervals = class_intervals(*(int(each[place]) for each in counts))
        cells = (
            cell
            for key in _METRICS
            for cell in (format_score(float(values[key][place])), format_interval(intervals[key]))
        )
        rows.append((name, f"{int(counts.actual[place]):,}", *cells))
    columns = (kind, "support", "F1", "95 %", "precision", "95 %", "recall", "95 %")
    return Table(f"Each {kind}, with Wilson intervals", columns, rows)


def _confusion_blocks(matrix: np.ndarray, names: list[str]) -> Iterator[Block | None]:
    if can_draw() and len(names) <= figures.MAX_DRAWN_LABELS:
        yield figures.confusion(matrix, names, "label", "prediction")
    elif can_draw():
        yield Note(
            f"The confusion matrix of {len(names)} labels is not drawn; the table has its largest cells."
        )
    wrong = matrix * (1 - np.eye(len(matrix), dtype=np.int64))
    order = np.argsort(-wrong, axis=None, kind="stable")[:MAX_CONFUSIONS]
    cells = [(int(place) // len(names), int(place) % len(names)) for place in order if wrong.flat[place]]
    totals = np.maximum(matrix.sum(axis=1), 1)
    rows = [
        (
            names[row],
            names[column],
            f"{wrong[row, column]:,}",
            format_percent(wrong[row, column] / totals[row]),
        )
        for row, column in cells
    ]
    columns = ("label", "prediction", "count", "share of the label")
    yield Table("Most frequent confusions", columns, rows) if rows else None
