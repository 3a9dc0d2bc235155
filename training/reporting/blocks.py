"""The content of a report apart from its format: sections of tables, pictures and sentences."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

# Scores whose names are more than their keys without underscores.
_SCORE_NAMES = {
    "roc_auc": "area under the ROC curve",
    "map": "mean average precision",
    "mrr": "mean reciprocal rank",
    "ndcg_at_10": "NDCG of the first 10",
    "recall_at_1": "recall of the first candidate",
    "pearson": "Pearson correlation",
    "spearman": "Spearman correlation",
    "mse": "mean squared error",
    "mae": "mean absolute error",
    "ece": "calibration error",
}


@dataclasses.dataclass(frozen=True)
class Lead:
    """The most important sentence."""

    kind: ClassVar[str] = "lead"
    text: str


@dataclasses.dataclass(frozen=True)
class Items:
    """A list of sentences."""

    kind: ClassVar[str] = "items"
    texts: Sequence[str]


@dataclasses.dataclass(frozen=True)
class Note:
    """A sentence or two."""

    kind: ClassVar[str] = "note"
    text: str


@dataclasses.dataclass(frozen=True)
class Code:
    """A shell command."""

    kind: ClassVar[str] = "code"
    text: str


@dataclasses.dataclass(frozen=True)
class KeyNumbers:
    """The main numbers of a report: (name, number, comment)."""

    kind: ClassVar[str] = "key_numbers"
    items: Sequence[tuple[str, str, str]]


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of strings; `texts` are the columns with texts of rows, the others have numbers or short names."""

    kind: ClassVar[str] = "table"
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: frozenset[int] = frozenset()
    wrapped: frozenset[int] = frozenset()  # other columns of long cells


@dataclasses.dataclass(frozen=True)
class Picture:
    """A drawing as SVG, in colors for light and for dark pages; the size is in CSS pixels."""

    kind: ClassVar[str] = "picture"
    alt: str
    light: str
    dark: str
    width: int
    height: int


Block = Lead | Items | Note | Code | KeyNumbers | Table | Picture


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of a report under a heading."""

    title: str
    blocks: Sequence[Block]


@dataclasses.dataclass(frozen=True)
class Report:
    """A whole report."""

    title: str
    subtitle: str
    sections: Sequence[Section]
    metadata: dict[str, Any]


def section(title: str, blocks: Iterable[Block]) -> Section | None:
    """A section of the blocks without empty tables; None if no block is left."""
    found = [block for block in blocks if not isinstance(block, Table) or block.rows]
    return Section(title, found) if found else None


def score_name(key: str) -> str:
    """The name of a score of metrics.json in words: "macro F1" for "macro_f1"."""
    return _SCORE_NAMES.get(key) or key.replace("_", " ").replace("f1", "F1")


def format_score(value: float | None) -> str:
    """Formats a score, loss or probability."""
    return "–" if value is None else f"{value:.4f}"


def format_interval(ends: Sequence[float] | None) -> str:
    """Formats an interval; empty for None or an empty one."""
    return "" if not ends else f"{ends[0]:.3f} – {ends[1]:.3f}"


def format_percent(value: float) -> str:
    """Formats a share in percent."""
    return f"{100 * value:.1f} %"
