"""The page: what is in it, and what it does in a browser."""

import base64
import html.parser
import json
import re

import numpy as np

from clients import chromium
from tests.browsers import needs_chromium
from tests.command_runs import ROOT
from tests.training.explanation.questions import pair_question, question
from training.explanation.deletion_test import deletion, word_scores
from training.explanation.page import embedded, page, verdict
from training.html.page import write_page

HOSTILE = "</script><img src=x onerror=alert(1)><!-- & \u2028 $data \ud83d"


def page_of(asked) -> str:
    scores = word_scores(asked)
    return page(asked, scores, deletion(asked, scores, 5, 0), "news")


def data_of(content: str) -> dict:
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', content, re.DOTALL)
    return json.loads(found)


def test_weights_come_back_from_the_page():
    asked = question()
    (only,) = data_of(page_of(asked))["maps"]
    steps = np.frombuffer(base64.b64decode(only["weights"]), "<u2") / 65535
    given = asked.attributions.maps[0].weights
    assert (only["layers"], only["heads"]) == given.shape[:2]
    np.testing.assert_allclose(steps.reshape(given.shape), given, atol=1e-5)


def test_nothing_in_a_text_ends_the_script():
    asked = pair_question(HOSTILE)
    content = page_of(asked)
    assert data_of(content)["sequences"][0]["tokens"][2] == HOSTILE
    assert content.count("</script") == 2 and "onerror" in content and "<img" not in content
    assert "<" not in embedded(HOSTILE) and json.loads(embedded(HOSTILE)) == HOSTILE


def test_the_script_writes_no_html_and_asks_nobody():
    script = re.findall(r"<script>(.*?)</script>", page_of(question()), re.DOTALL)[0]
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "fetch(", "https:"):
        assert word not in script


def test_elements_that_the_script_names_are_on_the_page():
    ids: list[str] = []

    class Ids(html.parser.HTMLParser):
        def handle_starttag(self, tag, attrs):
            ids.extend(str(value) for name, value in attrs if name == "id")

    content = page_of(question())
    reader = Ids()
    reader.feed(content)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'\belement\("([\w-]+)"\)', content)) <= set(ids)


def test_the_verdict_tells_both_changes():
    asked = question()
    test = deletion(asked, word_scores(asked), 5, 0)
    assert test is not None
    found = verdict(asked, test)
    fallen = test["steps"][0]["attention"]
    assert f"the most attended word the answer changes by {-100 * fallen:+.1f}".replace("-", "−") in found
    assert verdict(asked, None) == ""


KEY = """((key, target) => (target || document.activeElement).dispatchEvent(
    new KeyboardEvent("keydown", {key, bubbles: true, cancelable: true})))"""


@needs_chromium
def test_the_pages_work_in_a_browser(tmp_path):
    long = question([f"word{number}" for number in range(126)], [0.005] * 126, layers=4, heads=8)
    given = {"one": question(), "pair": pair_question(HOSTILE), "long": long}
    for name, asked in given.items():
        write_page(tmp_path / f"{name}.html", page_of(asked))
    with chromium.open_browser(["--hide-scrollbars"]) as tab:
        for name, asked in given.items():
            tab.open((tmp_path / f"{name}.html").as_uri())
            # Until the script has run, `maps` is the element of that name.
            tab.wait_for(f"document.title.startsWith({json.dumps(asked.explained)}) && Array.isArray(maps)")
            _check_page(tab, asked)
            assert tab.problems == []
            assert tab.evaluate("document.querySelectorAll('img').length") == 0


def _check_page(tab: chromium.Tab, asked) -> None:
    count = tab.evaluate
    shown = count("document.querySelectorAll('#panels .token').length")
    methods = count("data.methods.length")
    assert shown == methods * sum(len(row.tokens) for row in asked.attributions.sequences)
    first = asked.attributions.maps[0]
    layers, heads, rows, columns = first.weights.shape
    assert count("document.querySelectorAll('[role=gridcell]').length") == layers * (heads + 1)
    assert count("document.querySelectorAll('#from .token').length") == rows
    assert count("document.querySelectorAll('#to .token').length") == columns
    # The Tab key stops once at the grid; arrow keys choose a head.
    assert count("document.querySelectorAll('[role=gridcell][tabindex=\"0\"]').length") == 1
    count("document.querySelector('[role=gridcell][tabindex=\"0\"]').focus()")
    count(f"{KEY}('Home')")
    assert "head 1" in count("document.getElementById('chosen').textContent")
    count(f"{KEY}('ArrowRight')")
    selected = count("document.querySelector('[aria-selected=true]').getAttribute('aria-label')")
    assert selected.endswith("head 2")
    assert count("document.activeElement.getAttribute('aria-label')") == selected
    # A token is followed, and let go of.
    count("document.querySelectorAll('#from .token')[1].click()")
    pressed = "document.querySelectorAll('[aria-pressed=true]').length"
    assert count(pressed) > 1
    row = int(asked.attributions.maps[0].rows)
    assert asked.attributions.sequences[row].tokens[1] in count("document.getElementById('told').textContent")
    count(f"{KEY}('Escape')")
    assert count(pressed) == 0
    # The heat map reads itself out, as exact as the table is.
    count("[...document.querySelectorAll('#views button')][1].click()")
    count(f"{KEY}('ArrowDown', document.getElementById('map'))")
    told = count("document.getElementById('told').textContent")
    place = count("[state.layer, state.head, ...state.cell]")
    assert f"{100 * first.weights[tuple(place)]:.1f} %" in told
    assert count("document.querySelectorAll('#deletion tbody tr').length") > 0
    if len(asked.attributions.maps) > 1:
        count("document.querySelectorAll('#maps button')[2].click()")
        sizes = asked.attributions.maps[2].weights.shape
        assert count("document.querySelectorAll('[role=gridcell]').length") == sizes[0] * (sizes[1] + 1)
    count("[...document.querySelectorAll('#views button')][0].click()")


def test_the_picture_in_the_docs_is_there_and_small():
    text = (ROOT / "docs" / "how-to" / "explain.md").read_text("utf-8")
    (name,) = re.findall(r"!\[[^\]]+\]\((.+?)\)", text)
    picture = (ROOT / "docs" / "how-to" / name).read_bytes()
    assert picture.startswith(b"\x89PNG") and len(picture) < 150_000
