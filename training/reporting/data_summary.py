"""What the rows are: how many, which labels, how long, which texts stand there several times, and their hashes."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from training.data.types import Subset
from training.reporting import figures as pictures
from training.reporting.answered_items import cut, place_of
from training.reporting.blocks import Block, Note, Table, percent
from training.reporting.matplotlib_style import can_draw
from training.reporting.report_data import ReportData

MOST_LABELS, MOST_TEXTS = 60, 10
_COUNTS = {
    "train_rows": "training rows",
    "validation_rows": "validation rows",
    "test_rows": "test rows",
    "dropped_in_test": "rows dropped: their text stands in the test rows",
    "dropped_in_validation": "training rows dropped: their text stands in the validation rows",
    "repeated_train_rows": "training rows that repeat an earlier text and its label",
    "conflicting_train_rows": "training rows whose text also has another label",
    "empty_texts": "rows with an empty text",
}


def rows_read(report_data: ReportData) -> Iterator[Block | None]:
    """Counts, labels and hashes."""
    summary: dict[str, Any] = report_data.metrics.get("data", {})
    if summary:
        counts = [(what, f"{summary[name]:,}") for name, what in _COUNTS.items() if name in summary]
        yield Table("Rows of the fit", ("rows", "number"), counts)
        classes = sorted(summary["class_counts"].items(), key=lambda item: -item[1])
        total = sum(count for _, count in classes)
        more = f"; the {MOST_LABELS} most frequent of {len(classes)}" if len(classes) > MOST_LABELS else ""
        if classes:
            shown = [(name, f"{count:,}", percent(count / total)) for name, count in classes[:MOST_LABELS]]
            yield Table(f"Labels of the training rows{more}", ("label", "number", "share"), shown)
        for part in ("validation", "test"):
            if only := summary[f"labels_only_in_{part}"]:
                names = ", ".join(f"{name} ({rows})" for name, rows in only.items())
                yield Note(f"Labels that only {part} rows have, counted as errors: {names}.")
    origins = report_data.details.get("data")
    if isinstance(origins, dict):
        yield Table(
            "Where the rows come from",
            ("part", "file", "SHA-256"),
            [(part, str(each.get("name")), str(each.get("sha256") or "–")) for part, each in origins.items()],
            frozenset((1, 2)),
        )


def lengths(report_data: ReportData) -> Iterator[Block | None]:
    """How long texts are in tokens, and how many lost their ends."""
    found = {name: each for name, each in report_data.lengths.items() if len(each)}
    if found and can_draw():
        windows = report_data.kind in ("tag", "masked-lm")
        yield pictures.lengths(found, report_data.longest, "a window" if windows else "a text")
    tokens: dict[str, Any] = report_data.metrics.get("tokens", {})
    rows = []
    for name, counts in tokens.items():
        cut_short = next((k for k in ("truncated_rows", "windowed_rows", "cut_rows") if k in counts), None)
        many = max(1, counts["rows"])
        rows.append(
            (
                name,
                f"{counts['rows']:,}",
                f"{counts['tokens'] / many:.1f}",
                percent(counts["unknown_tokens"] / max(1, counts["tokens"])),
                "" if cut_short is None else f"{counts[cut_short]:,} ({percent(counts[cut_short] / many)})",
            )
        )
    if rows:
        ends = {"tag": "read in several windows", "masked-lm": "cut into pieces"}.get(
            report_data.kind, "truncated"
        )
        columns = ("part", "texts", "tokens each", "unknown tokens", ends)
        yield Table(f"Texts as tokens; at most {report_data.longest} are read at once", columns, rows)


def duplicates(report_data: ReportData) -> Iterator[Block | None]:
    """Training texts that stand there several times, first those with different labels."""
    if report_data.train is None or report_data.kind == "masked-lm":
        return
    order, starts, sizes, mixed = _groups(report_data.train)
    if not len(starts):
        yield Note("No text stands twice among the training rows.")
        return
    yield Note(
        f"{len(starts):,} texts stand {sizes.sum():,} times among the training rows; {mixed.sum():,} of them have"
        " different labels. White space around a text does not count, everything else does."
    )
    for caption, chosen in (("Texts with different labels", mixed), ("Texts that are repeated most", ~mixed)):
        places = np.flatnonzero(chosen)
        shown = [order[starts[each] : starts[each] + sizes[each]] for each in places[:MOST_TEXTS]]
        yield _repeated(caption, shown, len(places), report_data.train)


def _groups(train: Subset) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The texts that stand more than once, the most frequent one first.

    Returns:
        The rows, int64, ordered so that those of a text stand together; of each such text where its rows begin there
        and how many it has, int64, and whether they have different labels, bool.
    """
    digests, labels = train.examples.digests[train.rows], train.examples.label_digests()[train.rows]
    order = np.argsort(digests, kind="stable")
    new = np.concatenate([[True], np.diff(digests[order]) != 0]) if len(order) else np.zeros(0, np.bool_)
    starts = np.flatnonzero(new)
    sizes = np.diff(starts, append=len(order))
    # Of a text with one set of labels, the first row and all others say the same.
    others = labels[order] != np.repeat(labels[order][starts], sizes)
    mixed = np.add.reduceat(others, starts) > 0 if len(order) else new
    several = np.flatnonzero(sizes > 1)
    several = several[np.argsort(-sizes[several], kind="stable")]
    return train.rows[order], starts[several], sizes[several], mixed[several]


def _repeated(caption: str, groups: list[np.ndarray], texts_in_all: int, train: Subset) -> Table | None:
    rows = []
    for group in groups:
        fields = range(len(train.examples.texts))
        texts = " · ".join(cut(train.examples.read_texts(group[:1], field)[0]) for field in fields)
        rows.append((texts, str(len(group)), _labels(train, group), place_of(train, int(group[0]))))
    more = f", {MOST_TEXTS} of {texts_in_all:,}" if texts_in_all > MOST_TEXTS else ""
    columns = ("text", "times", "labels", "first place")
    return Table(f"{caption}{more}", columns, rows, frozenset((0, 2))) if rows else None


def _labels(train: Subset, rows: np.ndarray) -> str:
    """The labels of rows of one text, with how many have them."""
    ids, counts = train.examples.local_labels(rows)
    ends = np.cumsum(counts)
    sets: dict[str, int] = {}
    for first, end in zip(ends - counts, ends, strict=True):
        names = cut(" ".join(train.examples.label_names[each] for each in ids[first:end])) or "–"
        sets[names] = sets.get(names, 0) + 1
    return ", ".join(f"{name} ×{times}" if len(sets) > 1 else name for name, times in sets.items())
