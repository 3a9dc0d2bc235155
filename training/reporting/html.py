"""A report as one HTML file that asks nobody: no script, its own style, pictures inside."""

import base64
import html
from collections.abc import Callable
from string import Template
from typing import Any

from training.html.page import asset, html_page
from training.reporting.blocks import Block, Code, Figures, Note, Picture, Report, Section, Table

_SVG = "data:image/svg+xml;base64,"


def page(report: Report) -> str:
    """The HTML of a report. Nothing in it can run or load anything, whatever its texts are."""
    links = (
        f'<li><a href="#part-{number}">{html.escape(each.title)}</a></li>'
        for number, each in enumerate(report.sections)
    )
    values = {
        "name": html.escape(report.title),
        "told": html.escape(report.told),
        "links": "".join(links),
        "sections": "".join(_section(number, each) for number, each in enumerate(report.sections)),
    }
    body = Template(asset("training.reporting", "page.html")).substitute(values)
    return html_page(f"{report.title} · report", body, asset("training.reporting", "page.css"))


def _section(number: int, section: Section) -> str:
    heading = f'<h2 id="part-{number}">{html.escape(section.title)}</h2>'
    body = "".join(_WRITERS[type(block)](block) for block in section.blocks)
    return f'<section aria-labelledby="part-{number}">{heading}{body}</section>\n'


def _note(note: Note) -> str:
    return f'<p class="note">{html.escape(note.text)}</p>'


def _code(code: Code) -> str:
    # What scrolls can be reached by keyboard.
    return f'<div class="scroll"><pre tabindex="0"><code>{html.escape(code.text)}</code></pre></div>'


def _figures(figures: Figures) -> str:
    items = (
        f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}<small>{html.escape(told)}</small></dd></div>"
        for name, value, told in figures.items
    )
    return f'<dl class="figures">{"".join(items)}</dl>'


def _picture(picture: Picture) -> str:
    light, dark = (
        _SVG + base64.b64encode(each.encode("utf-8", "replace")).decode("ascii")
        for each in (picture.light, picture.dark)
    )
    size = f'width="{picture.width}" height="{picture.height}"'
    alt = html.escape(picture.alt)
    shown = (
        f'<picture><source srcset="{dark}" media="(prefers-color-scheme: dark)" />'
        f'<img src="{light}" alt="{alt}" {size} /></picture>'
    )
    return f'<figure class="scroll" tabindex="0" aria-label="{alt}">{shown}</figure>'


def _table(table: Table) -> str:
    def row(cells: Any, tag: str, scope: str) -> str:
        shown = (
            f"<{tag}{scope}{_class(index in table.texts)}>{html.escape(' '.join(cell.split()))}</{tag}>"
            for index, cell in enumerate(cells)
        )
        return f"<tr>{''.join(shown)}</tr>"

    head = row(table.columns, "th", ' scope="col"')
    body = "".join(row(cells, "td", "") for cells in table.rows)
    caption = f"<caption>{html.escape(table.caption)}</caption>" if table.caption else ""
    name = html.escape(table.caption or "Table")
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{name}">'
        f"<table>{caption}<thead>{head}</thead><tbody>{body}</tbody></table></div>"
    )


def _class(text: bool) -> str:
    return ' class="text"' if text else ""


_WRITERS: dict[type[Block], Callable[[Any], str]] = {
    Note: _note,
    Code: _code,
    Figures: _figures,
    Picture: _picture,
    Table: _table,
}
