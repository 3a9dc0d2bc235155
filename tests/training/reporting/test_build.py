"""The page: it runs and loads nothing, and is accessible in a browser."""

import html.parser
import re

import pytest

from clients import chromium
from tests.browsers import needs_chromium
from tests.training.reporting.reports import HOSTILE, hostile_report
from training.reporting.blocks import Report, Section, Table
from training.reporting.build import escape_markdown, model_card, report_page


class Reader(html.parser.HTMLParser):
    """Elements and texts of a page."""

    def __init__(self, content: str):
        super().__init__()
        self.elements: list[tuple[str, dict]] = []
        self.texts: list[str] = []
        self.feed(content)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.texts.append(data)


def test_texts_are_escaped():
    read = Reader(report_page(hostile_report()))
    tags = [tag for tag, _ in read.elements]
    assert "script" not in tags and tags.count("img") == 1 and tags.count("table") == 1
    assert not [name for _, attributes in read.elements for name in attributes if name.startswith("on")]
    assert not [name for _, attributes in read.elements for name in attributes if name == "style"]
    # Unchanged in heading, title, note, key number, cells and code.
    assert sum(HOSTILE in text for text in read.texts) >= 6
    assert any("two lines and" in text for text in read.texts)


def test_long_texts_are_collapsed_and_complete():
    text = " ".join(f"word{number}" for number in range(60))
    table = Table("rows", ("text", "label"), [(text, "x"), ("short", "y")], frozenset((0,)))
    read = Reader(report_page(Report("a", "b", [Section("c", (table,))], {})))
    assert [tag for tag, _ in read.elements].count("details") == 1
    start, rest = (each for each in read.texts if "word1" in each)
    assert start.rstrip("…") + rest.lstrip("…") == text


def test_the_policy_allows_the_style_only():
    content = report_page(hostile_report())
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="(.*?)"', content)
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "script-src" not in policy and "unsafe" not in policy and "http" not in policy
    (style,) = re.findall(r"<style>(.*?)</style>", content, re.DOTALL)
    assert "http" not in style and "url(" not in style


def test_scrolling_elements_are_focusable_and_named():
    scrolling = [
        attributes
        for tag, attributes in Reader(report_page(hostile_report())).elements
        if attributes.get("role") == "region" or tag in ("figure", "pre")
    ]
    assert len(scrolling) == 3
    assert all(attributes.get("tabindex") == "0" for attributes in scrolling)
    assert all(attributes["aria-label"] for attributes in scrolling if "role" in attributes)


@needs_chromium
def test_the_page_in_a_browser(tmp_path):
    path = tmp_path / "report.html"
    path.write_bytes(report_page(hostile_report()).encode("utf-8", "replace"))
    with chromium.open_browser() as tab:
        tab.open(path.as_uri())
        tab.wait_for("document.querySelector('img')?.complete")
        assert tab.evaluate("document.querySelectorAll('script, [onerror]').length") == 0
        assert tab.evaluate("document.querySelectorAll('tbody tr').length") == 2
        assert tab.evaluate("document.querySelector('h1').textContent") == HOSTILE
        assert tab.evaluate("document.querySelector('img').naturalWidth") == 40
        for scheme in ("light", "dark"):
            features = [{"name": "prefers-color-scheme", "value": scheme}]
            tab.call("Emulation.setEmulatedMedia", {"features": features})
            ink, paper = tab.evaluate(
                "(s => [s.color, s.backgroundColor].map(c => c.match(/[0-9.]+/g).slice(0, 3)"
                ".reduce((a, b) => a + Number(b), 0)))(getComputedStyle(document.body))"
            )
            assert (ink < paper) == (scheme == "light")
        size = {"width": 360, "height": 600, "deviceScaleFactor": 1, "mobile": False}
        tab.call("Emulation.setDeviceMetricsOverride", size)
        assert tab.evaluate("document.documentElement.scrollWidth <= 360")
        # The Tab key reaches the skip link and all scrolling elements.
        reached = set()
        for _ in range(12):
            for kind in ("keyDown", "keyUp"):
                tab.call(
                    "Input.dispatchKeyEvent",
                    {"type": kind, "key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9},
                )
            reached.add(tab.evaluate("document.activeElement.className || document.activeElement.tagName"))
        assert {"skip", "A", "PRE", "scroll"} <= reached
        assert tab.problems == []


def test_the_hub_reads_the_results():
    hub = pytest.importorskip("huggingface_hub")
    report = hostile_report()
    data = hub.ModelCard(model_card(report)).data
    assert (data.library_name, data.pipeline_tag, data.metrics) == (
        "keras",
        "text-classification",
        ["accuracy"],
    )
    # Not known to the trainer.
    assert data.license is None and data.language is None
    (result,) = data.eval_results
    assert (result.metric_type, result.metric_value, result.dataset_type) == ("accuracy", 0.5, "rows")
    assert data.model_name == report.metadata["model-index"][0]["name"] == result.dataset_name


def test_texts_are_escaped_in_markdown():
    markdown = pytest.importorskip("markdown")
    body = model_card(hostile_report()).split("---\n", 2)[2]
    shown = markdown.markdown(body, extensions=["tables", "fenced_code"])
    for tag in ("<script", "<img", "<a ", "<em>", "onerror=alert(1)>"):
        assert tag not in shown
    assert shown.count("<table>") == 1 and shown.count("<tr>") == 3
    assert shown.count("<td") == 4
    assert "<h1>" in shown and shown.count("<h2>") == 2


def test_texts_are_one_line():
    assert escape_markdown("a\n\n| b\x00\u2028c") == "a \\| b c"
    assert escape_markdown(HOSTILE).count("|") == escape_markdown(HOSTILE).count("\\|") == 1
