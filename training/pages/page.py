"""One HTML file with its own style and script, under a policy that lets nothing else count."""

import base64
import hashlib
import html
from importlib.resources import files
from string import Template


def html_page(title: str, body: str, style: str, script: str = "") -> str:
    """A page that loads nothing and runs nothing but its script.

    Args:
        title: Plain text.
        body: HTML, in which texts of others are escaped.
        style: CSS, added to what all pages share.
        script: JavaScript, which runs at the end of the body.
    """
    style = asset("training.pages", "page.css") + style
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
    return Template(asset("training.pages", "page.html")).substitute(values)


def asset(package: str, name: str) -> str:
    """The text of a file that stands in a package."""
    return files(package).joinpath(name).read_text("utf-8")


def _hash(content: str) -> str:
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"
