"""Pages: policy, escaping, and where they are written."""

import base64
import hashlib
import re

import pytest

from kmha.errors import InputError
from training.html.page import check_page_path, html_page, write_page

STYLE, SCRIPT = "h4 { color: red; }", "console.log('{{ title }}')"


def _hashed(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _policy(content: str) -> dict[str, str]:
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="(.*?)"', content)
    return dict(directive.split(" ", 1) for directive in policy.split("; "))


@pytest.mark.parametrize("script", ["", SCRIPT])
def test_the_policy_allows_the_own_style_and_script_only(script):
    content = html_page("a title", "<p>text</p>", STYLE, script)
    (style,) = re.findall(r"<style>(.*?)</style>", content, re.DOTALL)
    scripts = re.findall(r"<script>(.*?)</script>", content, re.DOTALL)
    assert style.endswith(STYLE) and scripts == [script][: bool(script)]
    allowed = {"style-src": _hashed(style)} | ({"script-src": _hashed(script)} if script else {})
    rest = {"img-src": "data:", "base-uri": "'none'", "form-action": "'none'"}
    assert _policy(content) == {"default-src": "'none'", **allowed, **rest}
    assert "http" not in style and "url(" not in style


def test_titles_are_escaped_and_values_are_not_rendered():
    content = html_page("</title><b>{{ body }}", "<p>{{ style }}</p>", "", "")
    assert "<title>&lt;/title&gt;&lt;b&gt;{{ body }}</title>" in content
    assert content.count("<p>{{ style }}</p>") == 1


@pytest.mark.parametrize("name", ["page.txt", "page", "none/page.html", "folder.html"])
def test_invalid_paths_are_rejected(name, tmp_path):
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(InputError, match=name):
        check_page_path(tmp_path / name)


def test_pages_are_written_whole_or_not_at_all(tmp_path):
    (tmp_path / "taken.html").mkdir()
    with pytest.raises(InputError, match="cannot write there"):
        write_page(tmp_path / "taken.html", "page")
    assert [path.name for path in tmp_path.iterdir()] == ["taken.html"]
    write_page(tmp_path / "page.html", "first")
    write_page(tmp_path / "page.html", "café \ud83d")
    assert (tmp_path / "page.html").read_text("utf-8") == "café ?"


def test_a_page_and_its_text_are_published_together(tmp_path):
    page, card = tmp_path / "report.html", tmp_path / "report.md"
    card.mkdir()
    with pytest.raises(InputError, match="cannot write there"):
        write_page(page, "page", {card: "card"})
    assert not page.exists()
    card.rmdir()
    write_page(page, "page", {card: "card"})
    assert (page.read_text(), card.read_text()) == ("page", "card") and len(list(tmp_path.iterdir())) == 2
