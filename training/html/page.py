"""One HTML file with its own style and script, under a policy that lets nothing else count."""

import base64
import hashlib
import html
import os
from importlib.resources import files
from pathlib import Path
from string import Template

from kmha.errors import InputError
from training.io.atomic_write import atomic_write


def html_page(title: str, body: str, style: str, script: str = "") -> str:
    """A page that loads nothing and runs nothing but its script.

    Args:
        title: Plain text.
        body: HTML, in which texts of others are escaped.
        style: CSS, added to what all pages share.
        script: JavaScript, which runs at the end of the body.
    """
    style = asset("training.html", "page.css") + style
    sources = {"default-src": "'none'", "style-src": _hash(style)}
    if script:
        sources["script-src"] = _hash(script)
        body += f"<script>{script}</script>"
    sources |= {"img-src": "data:", "base-uri": "'none'", "form-action": "'none'"}
    values = {
        "policy": "; ".join(f"{name} {source}" for name, source in sources.items()),
        "title": html.escape(title),
        "style": style,
        "body": body,
    }
    return Template(asset("training.html", "page.html")).substitute(values)


def asset(package: str, name: str) -> str:
    """The text of a file that stands in a package."""
    return files(package).joinpath(name).read_text("utf-8")


def _hash(content: str) -> str:
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


SUFFIXES = (".html", ".htm")


def write_page(path: Path, content: str) -> None:
    """Writes a page, or the text that goes with it, beside its place and renames it.

    Raises:
        InputError: Nobody can write there.
    """
    with atomic_write(path, overwrite=True, flag="--out") as beside:
        beside.write_bytes(content.encode("utf-8", "replace"))


def check_page_path(path: Path) -> None:
    """Refuses a place for a page before any work is done.

    Raises:
        InputError: Its name does not end as a page's, or it cannot be written to.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"--out {path}: expected a name that ends in .html, got another")
    if path.is_dir():
        raise InputError(f"--out {path}: expected a file, got a folder")
    if not path.parent.is_dir():
        raise InputError(f"--out {path}: expected a folder that exists, got {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"--out {path}: cannot write there")
