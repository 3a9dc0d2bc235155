"""Rows to review: confident errors, uncertain predictions, and likely label errors, each with its text."""

from collections.abc import Iterator, Sequence

import numpy as np

from kmha.bundle.manifest import MATCH, TAG
from training.reporting.blocks import Block, Note, Table, format_score
from training.reporting.label_errors import MIN_ROWS, has_cleanlab, label_errors, multi_label_errors
from training.reporting.report_data import ReportData
from training.reporting.scored_items import SHOWN, SingleLabelItems, multi_label_rows, single_label_items

NO_CLEANLAB = (
    "Likely label errors were not searched: cleanlab is not installed; pip install 'kmha[report]' and"
    " python -m training.report."
)
LABEL_ERRORS = "Likely label errors, most likely first"
# Most probabilities that are searched for label errors: 400 MB.
MAX_PROBABILITIES = 50_000_000


def review_blocks(report_data: ReportData) -> Iterator[Block | None]:
    """Errors and uncertain predictions of the evaluated rows, then likely label errors of all scored rows."""
    if report_data.is_multi_label:
        yield from _multi_label_blocks(report_data)
    elif items := single_label_items(report_data, report_data.evaluated):
        yield from _single_label_blocks(report_data, items)


def _unit(report_data: ReportData) -> str:
    return {TAG: "words", MATCH: "pairs"}.get(report_data.kind, "rows")


def _single_label_blocks(report_data: ReportData, items: SingleLabelItems) -> Iterator[Block | None]:
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
        yield Table(caption, columns, rows, frozenset(range(len(texts)))) if rows else None
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
    yield Table(LABEL_ERRORS, (*texts, *columns), rows, frozenset(range(len(texts)))) if rows else None


def _label_error(items: SingleLabelItems, place: int) -> tuple[str, ...]:
    ((location, texts),) = items.locate([place])
    probabilities, label = items.probabilities[place], int(items.true[place])
    best = int(np.argmax(np.where(np.arange(len(probabilities)) == label, -1.0, probabilities)))
    names = items.label(label), items.label(best)
    return (*texts, *names, *(format_score(float(probabilities[each])) for each in (label, best)), location)


def _multi_label_blocks(report_data: ReportData) -> Iterator[Block | None]:
    found = multi_label_rows(report_data, report_data.evaluated)
    wrong = int((found.true != found.predicted).sum())
    columns = ("text", "label", "true", "predicted", "probability", "threshold", "location")
    for caption, cells in (
        (
            f"Most confident errors, of {wrong:,} among the labels of {len(found.true):,} rows",
            found.confident_errors(),
        ),
        ("Closest to the threshold of a label", found.uncertain()),
    ):
        rows = [found.decision(row, column) for row, column in cells]
        yield Table(caption, columns, rows, frozenset((0,))) if rows else None
    if not has_cleanlab():
        yield Note(NO_CLEANLAB)
        return
    splits = [multi_label_rows(report_data, split) for split in report_data.splits]
    known = len(report_data.labels)
    samples = _sample([np.arange(len(each.true)) for each in splits], known)
    ranked = multi_label_errors(
        *(
            np.concatenate(
                [getattr(each, name)[places, :known] for each, places in zip(splits, samples, strict=True)]
            )
            for name in ("true", "predicted", "probabilities")
        )
    )
    yield _search_note(report_data, samples, len(ranked))
    rows = [splits[number].labels_of(place) for number, place in _in_splits(samples, ranked[:SHOWN])]
    yield (
        Table(LABEL_ERRORS, ("text", "true", "predicted", "location"), rows, frozenset((0,)))
        if rows
        else None
    )


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
