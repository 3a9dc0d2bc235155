"""What a report says, apart from how it looks: sections of tables, pictures and sentences, written twice."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Note:
    """A sentence or two."""

    text: str


@dataclasses.dataclass(frozen=True)
class Code:
    """What can be typed into a terminal."""

    text: str


@dataclasses.dataclass(frozen=True)
class Figures:
    """The few numbers to see first: (what it is, the number, what to know of it)."""

    items: Sequence[tuple[str, str, str]]


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of strings.

    Attributes:
        caption: What it is of.
        columns: Names.
        rows: As many cells each as there are columns.
        texts: The columns that hold texts; the others are numbers or short names.
    """

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: frozenset[int] = frozenset()


@dataclasses.dataclass(frozen=True)
class Picture:
    """A drawing as SVG, for light pages and for dark ones.

    Attributes:
        alt: What it shows, in words.
        light: The SVG.
        dark: The same in other colours.
        width: Of the drawing, in CSS pixels.
        height: Likewise.
    """

    alt: str
    light: str
    dark: str
    width: int
    height: int


Block = Note | Code | Figures | Table | Picture


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of a report under a heading."""

    title: str
    blocks: Sequence[Block]


@dataclasses.dataclass(frozen=True)
class Report:
    """A whole report.

    Attributes:
        title: The run's name.
        told: One line under it.
        sections: In order.
        card: The front matter of a model card, as JSON values.
    """

    title: str
    told: str
    sections: Sequence[Section]
    card: dict[str, Any]


def section(title: str, blocks: Iterable[Block | None]) -> Section | None:
    """A section of the blocks that there are; None without any."""
    kept = [block for block in blocks if block is not None]
    return Section(title, kept) if kept else None


def score(value: float | None) -> str:
    """A score, loss or probability as it is shown."""
    return "–" if value is None else f"{value:.4f}"


def between(ends: Sequence[float] | None) -> str:
    """An interval as it is shown; empty where there is none."""
    return "" if not ends else f"{ends[0]:.3f} – {ends[1]:.3f}"


def percent(value: float) -> str:
    """A share as it is shown."""
    return f"{100 * value:.1f} %"
