"""Report blocks of rows with their texts: confident errors, uncertain predictions, likely label errors, rankings.

Likely label errors are found by confident learning with cleanlab: a model that was not trained on a row is more
confident of another label than it is on average for rows of that label.
Source: Northcutt et al. 2021, arXiv:1911.00068.
"""

import importlib.util
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from kmha.bundle.manifest import MATCH, TAG
from training.reporting import figures
from training.reporting.blocks import Block, Note, Table, format_score
from training.reporting.matplotlib_style import can_draw
from training.reporting.report_data import (
    SHOWN,
    ReportData,
    SingleLabelItems,
    multi_label_rows,
    row_location,
    single_label_items,
    truncate,
)

# With fewer rows the mean confidence of a label is too noisy.
MIN_ROWS = 100

NO_CLEANLAB = (
    "Likely label errors were not searched: cleanlab is not installed; pip install 'kmha[report]' and"
    " python -m training.report."
)
LABEL_ERRORS = "Likely label errors, most likely first"
# Most probabilities that are searched for label errors: 400 MB.
MAX_PROBABILITIES = 50_000_000


def has_cleanlab() -> bool:
    """Whether cleanlab is installed (extra: report)."""
    return importlib.util.find_spec("cleanlab") is not None


def label_errors(true: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Rows of one label each, int [N], whose label is likely wrong, most likely first: int64 indices.

    The probabilities are float [N, C]. There are no errors for fewer than 100 rows or fewer than two labels.
    """
    if len(true) < MIN_ROWS or len(np.unique(true)) < 2:
        return np.zeros(0, np.int64)
    probabilities = np.asarray(probabilities, np.float64)
    # cleanlab expects sums of exactly 1; float32 rounds.
    probabilities = probabilities / probabilities.sum(axis=1, keepdims=True)
    from cleanlab.filter import find_label_issues

    labels = np.asarray(true, np.int64)
    return _quietly(find_label_issues, labels, probabilities, return_indices_ranked_by="normalized_margin")


def multi_label_errors(true: np.ndarray, predicted: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Rows of several labels, 0 or 1, [R, C], of which one is likely wrong, most likely first: int64 indices.

    `predicted` are the model's decisions by its thresholds; rows with equal labels are never reported, nor fewer than
    100 rows.
    """
    if len(true) < MIN_ROWS:
        return np.zeros(0, np.int64)
    true = np.asarray(true) != 0
    differs = (true != (np.asarray(predicted) != 0)).any(axis=1)
    # Labels that all rows or no rows have carry no information.
    usable = true.any(axis=0) & ~true.all(axis=0)
    if not usable.any():
        return np.zeros(0, np.int64)
    labels = [np.flatnonzero(row).tolist() for row in true[:, usable]]
    probabilities = np.asarray(probabilities, np.float64)[:, usable]
    from cleanlab.multilabel_classification.filter import find_label_issues

    ranked = _quietly(find_label_issues, labels, probabilities, return_indices_ranked_by="self_confidence")
    # cleanlab decides at 0.5; the model's thresholds may differ.
    return ranked[differs[ranked]]


def _quietly(find: Callable[..., Any], *arguments: Any, **options: Any) -> np.ndarray:
    with warnings.catch_warnings():
        # It warns about labels of very few rows, and finds no errors there.
        warnings.simplefilter("ignore", UserWarning)
        # One process: starting others takes longer than they save.
        return np.asarray(find(*arguments, n_jobs=1, **options), np.int64)


def review_blocks(report_data: ReportData) -> Iterator[Block]:
    """Errors and uncertain predictions of the evaluated rows, then likely label errors of all scored rows."""
    if report_data.is_multi_label:
        yield from _multi_label_blocks(report_data)
    elif items := single_label_items(report_data, report_data.evaluated):
        yield from _single_label_blocks(report_data, items)


def _unit(report_data: ReportData) -> str:
    return {TAG: "words", MATCH: "pairs"}.get(report_data.kind, "rows")


def _single_label_blocks(report_data: ReportData, items: SingleLabelItems) -> Iterator[Block]:
    unit, wrong = _unit(report_data), int((~items.correct).sum())
    texts = ("text a", "text b") if report_data.kind == MATCH else ("text",)
    for caption, places in (
        (f"Most confident errors, of {wrong:,} among {len(items.true):,} {unit}", items.confident_errors()),
        (f"Most uncertain {unit}: the two most probable labels are nearly equal", items.uncertain()),
    ):
        rows = [
            (
                *each,
                items.label(int(items.true[place])),
                items.label(int(items.predicted[place])),
                format_score(float(items.confidence[place])),
                location,
            )
            for place, (location, each) in zip(places, items.locate(places), strict=True)
        ]
        columns = (*texts, "label", "prediction", "probability of the prediction", "location")
        yield Table(caption, columns, rows, frozenset(range(len(texts))))
    if not has_cleanlab():
        yield Note(NO_CLEANLAB)
        return
    splits = [each for split in report_data.splits if (each := single_label_items(report_data, split))]
    width = items.probabilities.shape[1]
    samples = _sample([np.flatnonzero((0 <= each.true) & (each.true < width)) for each in splits], width)
    ranked = label_errors(
        np.concatenate([each.true[places] for each, places in zip(splits, samples, strict=True)]),
        np.concatenate([each.probabilities[places] for each, places in zip(splits, samples, strict=True)]),
    )
    yield _search_note(report_data, samples, len(ranked))
    rows = [_label_error(splits[number], place) for number, place in _in_splits(samples, ranked[:SHOWN])]
    columns = ("label", "more likely", "probability of the label", "of the more likely", "location")
    yield Table(LABEL_ERRORS, (*texts, *columns), rows, frozenset(range(len(texts))))


def _label_error(items: SingleLabelItems, place: int) -> tuple[str, ...]:
    ((location, texts),) = items.locate([place])
    probabilities, label = items.probabilities[place], int(items.true[place])
    best = int(np.argmax(np.where(np.arange(len(probabilities)) == label, -1.0, probabilities)))
    names = items.label(label), items.label(best)
    return (*texts, *names, *(format_score(float(probabilities[each])) for each in (label, best)), location)


def _multi_label_blocks(report_data: ReportData) -> Iterator[Block]:
    found = multi_label_rows(report_data, report_data.evaluated)
    wrong = int((found.true != found.predicted).sum())
    columns = ("text", "label", "true", "predicted", "probability", "threshold", "location")
    errors = f"Most confident errors, of {wrong:,} among the labels of {len(found.true):,} rows"
    for caption, cells in (
        (errors, found.confident_errors()),
        ("Closest to the threshold of a label", found.uncertain()),
    ):
        rows = [found.decision(row, column) for row, column in cells]
        yield Table(caption, columns, rows, frozenset((0,)))
    if not has_cleanlab():
        yield Note(NO_CLEANLAB)
        return
    splits = [multi_label_rows(report_data, split) for split in report_data.splits]
    known = len(report_data.labels)
    samples = _sample([np.arange(len(each.true)) for each in splits], known)
    true, predicted, probabilities = (
        np.concatenate([values[places, :known] for values, places in zip(each, samples, strict=True)])
        for each in zip(*((part.true, part.predicted, part.probabilities) for part in splits), strict=True)
    )
    ranked = multi_label_errors(true, predicted, probabilities)
    yield _search_note(report_data, samples, len(ranked))
    rows = [splits[number].labels_of(place) for number, place in _in_splits(samples, ranked[:SHOWN])]
    yield Table(LABEL_ERRORS, ("text", "true", "predicted", "location"), rows, frozenset((0,)))


def _sample(places: Sequence[np.ndarray], width: int) -> list[np.ndarray]:
    """Rows of each split to search: all of them, or a random sample if the probabilities need too much memory."""
    ends = np.cumsum([len(each) for each in places])
    most = max(MIN_ROWS, MAX_PROBABILITIES // width)
    if ends[-1] <= most:
        return list(places)
    chosen = np.sort(np.random.default_rng(0).choice(ends[-1], most, replace=False))
    return [
        each[chosen[(end - len(each) <= chosen) & (chosen < end)] - (end - len(each))]
        for each, end in zip(places, ends, strict=True)
    ]


def _in_splits(samples: Sequence[np.ndarray], ranked: np.ndarray) -> list[tuple[int, int]]:
    """Split and row in it of some rows of all samples together."""
    numbers = np.repeat(np.arange(len(samples)), [len(each) for each in samples])
    places = np.concatenate(samples)
    return [(int(numbers[each]), int(places[each])) for each in ranked]


def _search_note(report_data: ReportData, samples: Sequence[np.ndarray], found: int) -> Note:
    names, unit = " and ".join(split.name for split in report_data.splits), _unit(report_data)
    rows = sum(map(len, samples))
    if rows < MIN_ROWS:
        return Note(f"Likely label errors: expected at least {MIN_ROWS} {unit} to search them, got {rows}.")
    return Note(
        f"Likely label errors: confident learning (cleanlab) searched {rows:,} {names} {unit}, which the model was not"
        f" trained on, and reports {found:,} labels. Training rows are not searched, because the model has fitted their"
        " labels. A reported label is a reason to review the row, not a proof."
    )


def pair_blocks(report_data: ReportData) -> Iterator[Block]:
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


def _largest_errors(report_data: ReportData, expected: np.ndarray, predicted: np.ndarray) -> Table:
    places = np.argsort(-np.abs(predicted - expected), kind="stable")[:SHOWN].tolist()
    rows = []
    for place in places:
        numbers = f"{expected[place]:g}", f"{predicted[place]:.3f}"
        rows.append((*_pair_texts(report_data, place), *numbers, _location(report_data, place)))
    columns = ("text a", "text b", "expected", "predicted", "location")
    return Table("Largest errors", columns, rows, frozenset((0, 1)))


def _worst_queries(report_data: ReportData, targets: np.ndarray, scores: np.ndarray) -> Table:
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
        shown = (
            *_pair_texts(report_data, best),
            _pair_texts(report_data, first)[1],
            f"{rank + 1} of {len(places)}",
        )
        numbers = format_score(scores[best]), format_score(scores[first])
        rows.append((*shown, *numbers, _location(report_data, best)))
    columns = ("query", "best relevant", "ranked first", "rank", "score", "score of the first", "location")
    caption = f"Worst queries: {len(wrong):,} of {evaluated:,} have an irrelevant candidate first"
    return Table(caption, columns, rows, frozenset((0, 1, 2)))


def _pair_texts(report_data: ReportData, place: int) -> tuple[str, ...]:
    part = report_data.evaluated.part
    row = part.rows[place : place + 1]
    return tuple(truncate(part.examples.read_texts(row, field)[0]) for field in (0, 1))


def _location(report_data: ReportData, place: int) -> str:
    part = report_data.evaluated.part
    return row_location(part, int(part.rows[place]))
