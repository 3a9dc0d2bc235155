"""The documentation: links, the menu of the site, and the site itself."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.command_runs import ROOT

DOCS = ROOT / "docs"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
    *sorted(DOCS.rglob("*.md")),
]
LINK = re.compile(r"\]\(([^)\s]+)\)")


def text_of(page: Path) -> str:
    """Returns a page without its fenced code."""
    return re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors_of(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", text_of(page), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in titles}


def test_every_link_has_a_target():
    missing = []
    for page in PAGES:
        for link in LINK.findall(text_of(page)):
            if link.startswith(("http://", "https://", "mailto:")):
                continue
            path, _, anchor = link.partition("#")
            target = page.parent / path if path else page
            if not target.exists() or (anchor and anchor not in anchors_of(target)):
                missing.append(f"{page.relative_to(ROOT)}: {link}")
    assert not missing


def test_mentions_of_pages_are_links():
    mention = re.compile(r"`[\w/.-]*docs/[\w/-]+\.md`")
    found = [f"{page.relative_to(ROOT)}: {each}" for page in PAGES for each in mention.findall(text_of(page))]
    assert not found


def test_every_page_is_in_the_menu():
    menu = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"]

    def pages_of(entry) -> list[str]:
        if isinstance(entry, str):
            return [entry]
        items = entry.values() if isinstance(entry, dict) else entry
        return [page for item in items for page in pages_of(item)]

    listed = pages_of(menu)
    assert sorted(listed) == sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))


@pytest.mark.second
def test_the_site_is_built_without_tensorflow_and_without_remote_files(tmp_path):
    pytest.importorskip("mkdocs")
    program = (
        "import sys; from mkdocs.__main__ import cli\n"
        f"code = cli(['build', '--quiet', '--strict', '--site-dir', {str(tmp_path)!r}], standalone_mode=False)\n"
        "assert 'tensorflow' not in sys.modules and 'kmha' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "reference" / "bundle.html").read_text("utf-8")
    assert "kmha.bundle.bundle.Bundle.predict" in page
    remote = re.compile(r"<(?:script|link|img)[^>]+(?:src|href)=\"?https?://")
    assert not [path.name for path in tmp_path.rglob("*.html") if remote.search(path.read_text("utf-8"))]
