"""What every page has: a policy under which only its own style and script count."""

import base64
import hashlib
import re

import pytest

from training.html.page import html_page

STYLE, SCRIPT = "h4 { color: red; }", "console.log('$title')"


def _hashed(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _policy(content: str) -> dict[str, str]:
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="(.*?)"', content)
    return dict(directive.split(" ", 1) for directive in policy.split("; "))


@pytest.mark.parametrize("script", ["", SCRIPT])
def test_only_its_own_style_and_script_count(script):
    content = html_page("a title", "<p>text</p>", STYLE, script)
    (style,) = re.findall(r"<style>(.*?)</style>", content, re.DOTALL)
    scripts = re.findall(r"<script>(.*?)</script>", content, re.DOTALL)
    assert style.endswith(STYLE) and scripts == [script][: bool(script)]
    allowed = {"style-src": _hashed(style)} | ({"script-src": _hashed(script)} if script else {})
    rest = {"img-src": "data:", "base-uri": "'none'", "form-action": "'none'"}
    assert _policy(content) == {"default-src": "'none'", **allowed, **rest}
    assert "http" not in style and "url(" not in style


def test_titles_are_text_and_nothing_is_filled_in_twice():
    content = html_page("</title><b>$body", "<p>$style</p>", "", "")
    assert "<title>&lt;/title&gt;&lt;b&gt;$body</title>" in content
    assert content.count("<p>$style</p>") == 1
