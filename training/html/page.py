"""Self-contained HTML files: jinja2 templates, and a Content-Security-Policy for the page's own style and script."""

import base64
import hashlib
import os
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from kmha.errors import InputError
from training.io.disk import atomic_write

SUFFIXES = (".html", ".htm")


def html_page(title: str, body: str, style: str, script: str = "") -> str:
    """Renders a page that can load nothing and run nothing but its script; `body` is HTML, as `render` returns it.

    The style is appended to the shared style. The script runs at the end of the body.
    """
    from markupsafe import Markup

    style = read_asset("training.html", "page.css") + style
    sources = {"default-src": "'none'", "style-src": _hash(style)}
    if script:
        sources["script-src"] = _hash(script)
    sources |= {"img-src": "data:", "base-uri": "'none'", "form-action": "'none'"}
    policy = "; ".join(f"{name} {source}" for name, source in sources.items())
    trusted = {"policy": policy, "style": style, "body": body, "script": script}
    trusted = {name: Markup(value) for name, value in trusted.items()}
    return render("training.html", "page.html", title=title, **trusted)


def render(package: str, name: str, **values: Any) -> str:
    """Renders a jinja2 template of a package; all values are escaped unless they are `markupsafe.Markup`."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(read_asset(package, name)).render(**values)


def read_asset(package: str, name: str) -> str:
    """Reads a text file of a package."""
    return files(package).joinpath(name).read_text("utf-8")


def write_page(path: Path, content: str, texts: Mapping[Path, str] | None = None) -> None:
    """Writes a page and text versions by path, all together; raises InputError if the place is not writable."""
    companions = {each: text.encode("utf-8", "replace") for each, text in (texts or {}).items()}
    with atomic_write(path, overwrite=True, flag="--out", companions=companions) as partial:
        partial.write_bytes(content.encode("utf-8", "replace"))


def check_page_path(path: Path) -> None:
    """Raises InputError if a page does not end in .html or cannot be written; called before any work is done."""
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"--out {path}: expected a name that ends in .html, got another")
    if path.is_dir():
        raise InputError(f"--out {path}: expected a file, got a folder")
    if not path.parent.is_dir():
        raise InputError(f"--out {path}: expected a folder that exists, got {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"--out {path}: cannot write there")


def _hash(content: str) -> str:
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"
