"""Hooks of mkdocs: the pages link to source files and write formulas, as they do when read in the repository."""

import re
from pathlib import Path

from latex2mathml.converter import convert

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s#]+)\)")
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.+?)\\[)\]]</\1>', re.DOTALL)


def on_page_markdown(markdown: str, page, config, files) -> str:
    """Replaces links to files outside of docs by the source on the repository's site, or else by their text."""

    def replaced(link: re.Match) -> str:
        path = (Path(page.file.abs_src_path).parent / link[2]).resolve()
        outside = path.exists() and path.is_relative_to(ROOT) and not path.is_relative_to(config.docs_dir)
        if not outside:
            return link[0]
        if not config.repo_url:
            return link[1]
        return f"[{link[1]}]({config.repo_url.rstrip('/')}/blob/main/{path.relative_to(ROOT)})"

    return LINK.sub(replaced, markdown)


def on_page_content(html: str, page, config, files) -> str:
    """Turns formulas into MathML, so that a page needs no script to show them."""

    def formula(found: re.Match) -> str:
        text = found[3].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
        return convert(text.strip(), display="block" if found[2] == "[" else "inline")

    return FORMULA.sub(formula, html)
