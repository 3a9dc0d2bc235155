"""Help texts: the one of tyro without frames, with a short form that shows the most important settings."""

import contextlib
import io
import os
import re
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import tyro

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# Defaults that say nothing, and the choice of no value.
_NOISE = re.compile(r"\{None\}\||\|\{None\}|(?<=\{)None,|(?<=\{),| \(default: (None|''|False|)\)")
_NAME_WIDTH, _LONGEST_LINE = 32, 110
_PARSED_WIDTH = "80"


def format_help(config_type: type, program: str, shown: Sequence[str] = ()) -> str:
    """The help of a command, one block for each section of settings.

    With `shown`, names of flags such as "--out" or prefixes such as "--match.", only these, each in a few lines,
    and a line that names --help-all.
    """
    head, sections = _parse_help(config_type, program)
    width = min(shutil.get_terminal_size().columns, _LONGEST_LINE)
    lines, total = [head], 0
    for title, entries in sections:
        total += len(entries)
        if shown:
            entries = [
                (name, text) for name, text in entries if _flag(name) in shown or _section(name) in shown
            ]
        if entries:
            lines.append("" if shown else f"\n{title}:")
        for name, text in entries:
            if shown:
                lines += _short_entry(name, text, width, lines=1 if _section(name) in shown else 2)
            else:
                lines += _entry(name, text, width)
    if shown:
        lines.append(f"\n--help-all lists all {total} settings.")
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines))


def _flag(name: str) -> str:
    return re.split("[ ,]", name)[0]


def _section(name: str) -> str:
    return name.split(".")[0] + "."


def _short_entry(name: str, text: str, width: int, lines: int) -> list[str]:
    """A setting in a few lines: its choices only if there is room, and the first sentence of its help."""
    sentence = text.split(". ")[0].removesuffix(".")
    if _switch(name) or len(name) + 2 >= _NAME_WIDTH:
        name = _flag(name)
    return _entry(name, sentence, width, max_lines=lines)


def _switch(name: str) -> bool:
    return "no-" in name.partition(", ")[2]


def _entry(name: str, text: str, width: int, **options: Any) -> list[str]:
    indent = " " * _NAME_WIDTH
    found = textwrap.wrap(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=indent,
        break_on_hyphens=False,
        placeholder=" …",
        **options,
    ) or [""]
    if len(name) + 2 < _NAME_WIDTH - 1:
        return [f"  {name}".ljust(_NAME_WIDTH) + found[0][_NAME_WIDTH:], *found[1:]]
    return [f"  {name}", *found]


def _parse_help(config_type: type, program: str) -> tuple[str, list[tuple[str, list[tuple[str, str]]]]]:
    """The text above the first frame of tyro's help, and of each frame the title and the settings with their help."""
    # tyro draws frames, which separate the sections, only in UTF-8.
    output = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with _parsed_width(), contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
        tyro.cli(config_type, args=["--help"], prog=program)
    output.seek(0)
    head: list[str] = []
    sections: list[tuple[str, list[tuple[str, str]]]] = []
    for line in _COLOUR.sub("", output.read()).splitlines():
        if line.startswith("╭"):
            sections.append((line.strip("╭─╮ "), []))
        elif not sections:
            head.append(line)
        elif line.startswith("│"):
            inside, entries = line[2:-1].rstrip(), sections[-1][1]
            if set(inside) == {"─"}:
                # What precedes the rule describes the section.
                entries.clear()
            elif entries and not entries[-1][1] and entries[-1][0].count("{") > entries[-1][0].count("}"):
                # Choices that continue.
                entries[-1] = (f"{entries[-1][0]} {inside.strip()}", "")
            elif inside[:1].strip():
                name, _, text = inside.partition("  ")
                entries.append((name, text.strip()))
            elif entries:
                name, text = entries[-1]
                entries[-1] = (name, f"{text} {inside.strip()}".strip())
    cleaned = [
        (title, [(_NOISE.sub("", name), _NOISE.sub("", text)) for name, text in entries])
        for title, entries in sections
    ]
    return _NOISE.sub("", "\n".join(head).rstrip()), cleaned


@contextlib.contextmanager
def _parsed_width() -> Iterator[None]:
    """Sets a width at which tyro writes sections below each other, not side by side."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = _PARSED_WIDTH
    try:
        yield
    finally:
        del os.environ["COLUMNS"]
        if before is not None:
            os.environ["COLUMNS"] = before
