"""What a model makes of each label: precision, recall and F1 with intervals, the confusion matrix, confusions."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from kmha.manifest import TAG
from kmha.tag_schemes import strict_spans_of
from training.reporting import pictures
from training.reporting.answered import answered
from training.reporting.class_intervals import class_intervals, single_label_counts
from training.reporting.content import Block, Note, Table, between, score
from training.reporting.drawing import can_draw
from training.reporting.material import Material
from training.reporting.several_labels import several_labels

MISSED = "(none)"
MOST_CONFUSIONS = 12


def labels(material: Material) -> Iterator[Block]:
    """The table of labels or types of spans, and their confusion matrix."""
    scores = material.scores
    per_label = scores.get("per_class") or scores.get("per_type")
    names = list(per_label) if per_label else ["0", "1"] if material.target == "binary" else []
    counts = _counts(material, names)
    if counts is not None:
        spans = material.kind == TAG and material.task.given_scheme != "none"  # pyright: ignore
        yield _table(names, counts, "type" if spans else "tag" if material.kind == TAG else "label")
    if "confusion_matrix" in scores:
        matrix = np.array(scores["confusion_matrix"])
        # Of spans one more, for those that were missed and those that nobody wanted.
        names = [*names, *[MISSED] * (len(matrix) - len(names))]
        yield from _confusion(matrix, names)


def _counts(material: Material, names: list[str]) -> tuple[np.ndarray, ...] | None:
    """Hits, given and actual of each label in each row or sentence, [R, C]; None where there are no labels."""
    if material.several_labels:
        found = several_labels(material, material.judged)
        return found.true & found.given, found.given, found.true
    if material.kind == TAG:
        return _tag_counts(material, names)
    if one := answered(material, material.judged):
        return single_label_counts(one.true, one.given, len(names))
    return None


def _tag_counts(material: Material, names: list[str]) -> tuple[np.ndarray, ...]:
    """Of each sentence and type of span, or tag where they spell no spans; int64 [R, T]."""
    task: Any = material.task
    asked, places = material.judged, {name: place for place, name in enumerate(names)}
    gold = task.given_tags(asked.part)
    counts = np.zeros((3, len(gold), len(names)), np.int64)
    for row, (wanted, tagged) in enumerate(zip(gold, asked.answers.sentences(), strict=True)):
        given = task.as_given([material.labels[index] for index in tagged.tag_ids])
        if task.given_scheme == "none":
            sides = [set(enumerate(wanted)), set(enumerate(given))]
        else:
            sides = [
                {((s.first, s.end), s.type) for s in strict_spans_of(tags, task.given_scheme)}
                for tags in (wanted, given)
            ]
        for each, things in zip(counts[:, row], (sides[0] & sides[1], sides[1], sides[0]), strict=True):
            np.add.at(each, [places[name] for _, name in things], 1)
    return tuple(counts)


def _table(names: Sequence[str], counts: tuple[np.ndarray, ...], what: str) -> Table:
    hits, given, actual = (np.asarray(each).sum(axis=0) for each in counts)
    intervals = class_intervals(*counts)
    rows = []
    for place, name in enumerate(names):
        ends = intervals[place] if intervals else {}
        precision = hits[place] / given[place] if given[place] else 0.0
        recall = hits[place] / actual[place] if actual[place] else 0.0
        f1 = 2 * hits[place] / max(1, given[place] + actual[place])
        cells = (
            cell
            for key, value in (("f1", f1), ("precision", precision), ("recall", recall))
            for cell in (score(value), between(ends.get(key)))
        )
        rows.append((name, f"{actual[place]:,}", *cells))
    columns = (what, "in the rows", "F1", "95 %", "precision", "95 %", "recall", "95 %")
    return Table(f"Each {what}, with bootstrap intervals", columns, rows)


def _confusion(matrix: np.ndarray, names: list[str]) -> Iterator[Block]:
    if len(names) <= pictures.MOST_DRAWN and can_draw():
        yield pictures.confusion(matrix, names, "label", "answer")
    elif can_draw():
        yield Note(
            f"A confusion matrix of {len(names)} labels would show nothing; the table has its largest cells."
        )
    wrong = matrix * (1 - np.eye(len(matrix), dtype=np.int64))
    order = np.argsort(-wrong, axis=None, kind="stable")[:MOST_CONFUSIONS]
    cells = [(int(place) // len(names), int(place) % len(names)) for place in order if wrong.flat[place]]
    totals = np.maximum(matrix.sum(axis=1), 1)
    if cells:
        yield Table(
            "Most frequent confusions",
            ("label", "answer", "times", "of the label"),
            [
                (
                    names[row],
                    names[column],
                    f"{matrix[row, column]:,}",
                    f"{matrix[row, column] / totals[row]:.1%}",
                )
                for row, column in cells
            ],
            frozenset((1,)),
        )
