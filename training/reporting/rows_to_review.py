"""Rows to read: errors, close calls, and labels that are likely to be wrong, each with its text."""

from collections.abc import Iterator, Sequence

import numpy as np

from kmha.bundle.manifest import TAG
from training.reporting.answered_items import SHOWN, Answered, answered, confident_errors, uncertain
from training.reporting.blocks import Block, Note, Table, score
from training.reporting.label_errors import LEAST_ROWS, can_be_found, label_errors, several_label_errors
from training.reporting.multi_label import SeveralLabels, several_labels
from training.reporting.report_data import ReportData

NO_LIBRARY = (
    "Likely label errors were not looked for: cleanlab is not installed; pip install 'kmha[report]' and"
    " python -m training.report."
)
DOUBTED = "Likely label errors, the likeliest first"
# That are looked at for label errors: 400 MB of them.
MOST_PROBABILITIES = 50_000_000


def doubts(report_data: ReportData) -> Iterator[Block | None]:
    """Errors and close calls of the judged rows, then likely label errors of all rows that were asked."""
    if report_data.several_labels:
        yield from _of_several(report_data)
    elif found := answered(report_data, report_data.evaluated):
        yield from _of_one(report_data, found)


def unit(report_data: ReportData) -> str:
    """What gets an answer."""
    return "words" if report_data.kind == TAG else "pairs" if report_data.kind == "match" else "rows"


def _of_one(report_data: ReportData, found: Answered) -> Iterator[Block | None]:
    what, wrong = unit(report_data), int((~found.right).sum())
    yield _table(
        f"Most confident errors, of {wrong:,} among {len(found.true):,} {what}",
        found,
        confident_errors(found),
    )
    yield _table(
        f"Most uncertain {what}: the two most probable labels are nearly level", found, uncertain(found)
    )
    if not can_be_found():
        yield Note(NO_LIBRARY)
        return
    parts = [each for asked in report_data.asked if (each := answered(report_data, asked))]
    width = found.probabilities.shape[1]
    pool = _pooled([np.flatnonzero((0 <= part.true) & (part.true < width)) for part in parts], width)
    ranked = label_errors(
        np.concatenate([part.true[places] for part, places in zip(parts, pool, strict=True)]),
        np.concatenate([part.probabilities[places] for part, places in zip(parts, pool, strict=True)]),
    )
    yield Note(_looked_at(report_data, pool, len(ranked)))
    shown = _in_parts(pool, ranked[:SHOWN])
    if shown:
        columns = ("label", "likelier", "probability of the label", "of the likelier", "place")
        texts = _text_columns(report_data)
        yield Table(
            DOUBTED,
            (*texts, *columns),
            [_likelier(parts[number], place) for number, place in shown],
            frozenset(range(len(texts))),
        )


def _likelier(part: Answered, place: int) -> tuple[str, ...]:
    ((where, texts),) = part.shown([place])
    probabilities, label = part.probabilities[place], int(part.true[place])
    best = int(np.argmax(np.where(np.arange(len(probabilities)) == label, -1.0, probabilities)))
    chances = score(float(probabilities[label])), score(float(probabilities[best]))
    return (*texts, part.label(label), part.label(best), *chances, where)


def _of_several(report_data: ReportData) -> Iterator[Block | None]:
    found = several_labels(report_data, report_data.evaluated)
    wrong = found.true != found.given
    yield _labels_table(
        found,
        f"Most confident errors, of {int(wrong.sum()):,} among the labels of {len(wrong):,} rows",
        found.confident_errors(SHOWN),
    )
    yield _labels_table(found, "Closest to the threshold of a label", found.uncertain(SHOWN))
    if not can_be_found():
        yield Note(NO_LIBRARY)
        return
    parts = [several_labels(report_data, asked) for asked in report_data.asked]
    known = len(report_data.labels)
    pool = _pooled([np.arange(len(part.true)) for part in parts], known)
    ranked = several_label_errors(
        np.concatenate([part.true[places, :known] for part, places in zip(parts, pool, strict=True)]),
        np.concatenate([part.given[places, :known] for part, places in zip(parts, pool, strict=True)]),
        np.concatenate([part.probabilities[places] for part, places in zip(parts, pool, strict=True)]),
    )
    yield Note(_looked_at(report_data, pool, len(ranked)))
    rows = [parts[number].named(place) for number, place in _in_parts(pool, ranked[:SHOWN])]
    if rows:
        yield Table(DOUBTED, ("text", "labels", "the model's", "place"), rows, frozenset((0,)))


def _pooled(places: Sequence[np.ndarray], width: int) -> list[np.ndarray]:
    """Of each part the rows to look at: those given, or where their probabilities fill the memory some at random."""
    ends = np.cumsum([len(each) for each in places])
    most = max(LEAST_ROWS, MOST_PROBABILITIES // width)
    if ends[-1] <= most:
        return list(places)
    chosen = np.sort(np.random.default_rng(0).choice(ends[-1], most, replace=False))
    return [
        each[chosen[(end - len(each) <= chosen) & (chosen < end)] - (end - len(each))]
        for each, end in zip(places, ends, strict=True)
    ]


def _in_parts(pool: Sequence[np.ndarray], ranked: np.ndarray) -> list[tuple[int, int]]:
    """The part and the row in it of some rows of all parts together."""
    numbers = np.repeat(np.arange(len(pool)), [len(each) for each in pool])
    places = np.concatenate(pool)
    return [(int(numbers[each]), int(places[each])) for each in ranked]


def _looked_at(report_data: ReportData, pool: Sequence[np.ndarray], found: int) -> str:
    names, what = " and ".join(asked.name for asked in report_data.asked), unit(report_data)
    rows = sum(map(len, pool))
    if rows < LEAST_ROWS:
        return f"Likely label errors: {LEAST_ROWS} {what} or more are expected to look for them, there are {rows}."
    return (
        f"Likely label errors: confident learning (cleanlab) looked at {rows:,} {names} {what}, which the model has not"
        f" trained on, and doubts {found:,} labels. The training rows were not looked at: a model believes what it was"
        " taught. A doubt is a reason to read the row, no proof."
    )


def _table(caption: str, found: Answered, places: Sequence[int]) -> Table | None:
    if not places:
        return None
    rows = []
    for place, (where, texts) in zip(places, found.shown(places), strict=True):
        names = (found.label(int(each[place])) for each in (found.true, found.given))
        rows.append((*texts, *names, score(float(found.sure[place])), where))
    texts = len(rows[0]) - 4
    names = ("text",) if texts == 1 else ("text a", "text b")
    columns = (*names, "label", "answer", "probability of the answer", "place")
    return Table(caption, columns, rows, frozenset(range(texts)))


def _labels_table(found: SeveralLabels, caption: str, cells: Sequence[tuple[int, int]]) -> Table | None:
    if not cells:
        return None
    return Table(
        caption,
        ("text", "label", "expected", "given", "probability", "threshold", "place"),
        [found.decision(row, column) for row, column in cells],
        frozenset((0,)),
    )


def _text_columns(report_data: ReportData) -> tuple[str, ...]:
    return ("text a", "text b") if report_data.kind == "match" else ("text",)
