"""A report as Markdown, in the form of a model card: front matter that a model hub reads, then tables."""

import re
from collections.abc import Callable
from typing import Any

from training.reporting.blocks import Block, Code, Figures, Note, Picture, Report, Table

# Of Markdown, and of the HTML that Markdown lets through.
_SPECIAL = re.compile(r"([\\`*_{}\[\]#|~$!])")


def card(report: Report) -> str:
    """The Markdown of a report; pictures are named in words, they stand in the HTML."""
    lines = ["---", *_yaml(report.card), *_LEFT_OPEN, "---", "", f"# {plain(report.title)}", ""]
    lines += [plain(report.told), ""]
    for section in report.sections:
        lines += [f"## {plain(section.title)}", ""]
        for block in section.blocks:
            lines += [*_WRITERS[type(block)](block), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


_LEFT_OPEN = (
    "# The rows decide these, and nobody told the fit:",
    "# license: mit",
    "# language: en",
)


def plain(text: str) -> str:
    """A text on one line that Markdown shows as it is."""
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(r"\\\1", text)


def _note(note: Note) -> list[str]:
    return [plain(note.text)]


def _code(code: Code) -> list[str]:
    # Longer than any run of backticks inside.
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", code.text)), default=0))
    return [f"{fence}bash", code.text, fence]


def _figures(figures: Figures) -> list[str]:
    return [
        f"- {plain(name)}: **{plain(value)}**{f' ({plain(told)})' if told else ''}"
        for name, value, told in figures.items
    ]


def _picture(picture: Picture) -> list[str]:
    return [f"Picture in report.html: {plain(picture.alt)}"]


def _table(table: Table) -> list[str]:
    aligned = (":--" if index in table.texts or not index else "--:" for index in range(len(table.columns)))
    lines = [plain(table.caption), ""] if table.caption else []
    for cells in (table.columns, None, *table.rows):
        shown = aligned if cells is None else (plain(cell) for cell in cells)
        lines.append(f"| {' | '.join(shown)} |")
    return lines


def _yaml(value: Any, indent: str = "") -> list[str]:
    """Lines of YAML of dictionaries, lists, strings and floats; strings are quoted, whatever they hold."""
    lines = []
    pairs = value.items() if isinstance(value, dict) else ((None, each) for each in value)
    for name, each in pairs:
        start = f"{indent}- " if name is None else f"{indent}{name}:"
        if isinstance(each, dict | list):
            inner = _yaml(each, f"{indent}  ")
            if name is None:
                # The first entry stands beside the dash.
                lines += [start + inner[0].lstrip(), *inner[1:]]
            else:
                lines += [start, *inner]
        else:
            gap = "" if name is None else " "
            # Without an exponent, which not every reader of YAML takes for a number.
            lines.append(f"{start}{gap}{_quoted(each) if isinstance(each, str) else f'{each:.6f}'}")
    return lines


def _quoted(text: str) -> str:
    shown = (c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08x}" for c in text)
    return f'"{"".join(shown)}"'


_WRITERS: dict[type[Block], Callable[[Any], list[str]]] = {
    Note: _note,
    Code: _code,
    Figures: _figures,
    Picture: _picture,
    Table: _table,
}
