"""The attention view: its data, and its behavior in a browser."""

import base64
import html.parser
import json
import re

import numpy as np

from clients import chromium
from tests.browsers import needs_chromium
from tests.command_runs import ROOT
from tests.training.explanation.explanations import explanation, linear_explanation, pair_explanation
from training.explanation.deletion_test import best_method, deletion_test, word_scores
from training.explanation.page import page, page_data, script_json, summarize
from training.html.page import write_page

HOSTILE = "</script><img src=x onerror=alert(1)><!-- & \u2028 {{ data }} \ud83d"


def page_of(explained) -> str:
    scores = word_scores(explained)
    return page(explained, scores, deletion_test(explained, scores, 5, 0), "news")


def data_of(content: str) -> dict:
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', content, re.DOTALL)
    return json.loads(found)


def test_weights_are_read_back_from_the_page():
    explained = explanation()
    (only,) = data_of(page_of(explained))["maps"]
    steps = np.frombuffer(base64.b64decode(only["weights"]), "<u2") / 65535
    given = explained.attributions.maps[0].weights
    assert (only["layers"], only["heads"]) == given.shape[:2]
    np.testing.assert_allclose(steps.reshape(given.shape), given, atol=1e-5)


def test_hostile_texts_stay_data():
    explained = pair_explanation(HOSTILE)
    content = page_of(explained)
    assert data_of(content)["sequences"][0]["tokens"][2] == HOSTILE
    assert content.count("</script") == 2 and "onerror" in content and "<img" not in content
    assert "<" not in script_json(HOSTILE) and json.loads(script_json(HOSTILE)) == HOSTILE


def test_the_script_writes_no_html_and_loads_nothing():
    script = re.findall(r"<script>(.*?)</script>", page_of(explanation()), re.DOTALL)[0]
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "fetch(", "https:"):
        assert word not in script


def test_the_elements_of_the_script_exist():
    ids: list[str] = []

    class Ids(html.parser.HTMLParser):
        def handle_starttag(self, tag, attrs):
            ids.extend(str(value) for name, value in attrs if name == "id")

    content = page_of(explanation())
    reader = Ids()
    reader.feed(content)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'\belement\("([\w-]+)"\)', content)) <= set(ids)


def test_the_summary_names_the_words_of_the_best_method_and_both_changes():
    explained = explanation()
    scores = word_scores(explained)
    test = deletion_test(explained, scores, 5, 0)
    assert test is not None and best_method(test) == "gradient"
    found = summarize(explained, scores, test)
    chance = -100 * test["steps"][0]["random"]
    assert found == (
        "“bread” counts most for bread by gradient × input: without it the probability changes by −40.0 points,"
        f" without a random word by {chance:+.1f} points."
    ).replace("-", "−")
    assert summarize(explained, scores, None) == ""
    both = {"words": 4, "draws": 1, "steps": [{**test["steps"][0], "dropped": 2, "gradient": 0.6}]}
    assert summarize(explained, scores, both).startswith("“bread” and “seven” count most for bread")


def test_the_first_view_is_the_one_that_the_deletion_test_supports_best():
    explained = explanation()
    assert [each["key"] for each in data_of(page_of(explained))["methods"]] == [
        "gradient",
        "rollout",
        "left_out",
    ]
    # No method finds the words better than chance.
    step = {"dropped": 1, "attention": 0.1, "gradient": 0.1, "left_out": 0.4, "random": 0.2}
    step |= {"random_low": 0.0, "random_high": 0.4}
    test = {"words": 4, "draws": 1, "steps": [step]}
    data = page_data(explained, word_scores(explained), test, "news")
    assert data["methods"][0]["key"] == "left_out" and "no other view" in data["best_hint"]


def test_a_page_of_a_linear_path_has_its_parts_and_ten_ngrams():
    linear = data_of(page_of(linear_explanation()))["linear"]
    np.testing.assert_allclose([value for _, value in linear["parts"]], [7.25, -0.25, 0.5, 7.5])
    assert [name for name, _ in linear["parts"]][-2:] == ["encoder", "logit"]
    assert linear["ngrams"][1] == ["<b>ngram1", -2.9] and len(linear["ngrams"]) == 10
    assert data_of(page_of(explanation()))["linear"] is None


def test_without_attention_there_are_only_ngrams():
    explained = linear_explanation(has_attention=False)
    data = data_of(page_of(explained))
    assert [each["key"] for each in data["methods"]] == ["ngrams", "left_out"]
    assert data["maps"] == [] and "attention" not in data["caution"].lower()
    assert "by their n-grams" in data["summary"] and "attend" not in data["summary"]


KEY = """((key, target) => (target || document.activeElement).dispatchEvent(
    new KeyboardEvent("keydown", {key, bubbles: true, cancelable: true})))"""


@needs_chromium
def test_the_pages_work_in_a_browser(tmp_path):
    long = explanation([f"word{number}" for number in range(126)], [0.005] * 126, layers=4, heads=8)
    given = {"one": explanation(), "pair": pair_explanation(HOSTILE), "long": long}
    given |= {"linear": linear_explanation(), "none": linear_explanation(has_attention=False)}
    for name, explained in given.items():
        write_page(tmp_path / f"{name}.html", page_of(explained))
    with chromium.open_browser(["--hide-scrollbars"]) as tab:
        for name, explained in given.items():
            tab.open((tmp_path / f"{name}.html").as_uri())
            assert tab.evaluate("Array.isArray(maps)") and tab.evaluate("document.title").startswith(
                explained.explained
            )
            _check_page(tab, explained)
            size = {"width": 360, "height": 600, "deviceScaleFactor": 1, "mobile": False}
            tab.call("Emulation.setDeviceMetricsOverride", size)
            assert tab.evaluate("document.documentElement.scrollWidth") <= 360, name
            tab.call("Emulation.clearDeviceMetricsOverride")
            assert tab.problems == []
            assert tab.evaluate("document.querySelectorAll('img').length") == 0


def _check_page(tab: chromium.Tab, explained) -> None:
    count = tab.evaluate
    shown = count("document.querySelectorAll('#panels .token').length")
    methods = count("data.methods.length")
    assert shown == methods * sum(len(row.tokens) for row in explained.attributions.sequences)
    assert count("document.querySelectorAll('#deletion tbody tr').length") > 0
    assert count("document.getElementById('summary').textContent") == count("data.summary") != ""
    # Shares of attention differ little: the color spans the least and the most attended word.
    shares = """(place => [...document.querySelectorAll('.panel')[place].querySelectorAll('.token:not(.special)')]
        .map(each => Number(each.style.getPropertyValue('--share'))))"""
    if (place := count("data.methods.findIndex(each => each.key === 'rollout')")) >= 0:
        found = count(f"{shares}({place})")
        assert min(found) == 0 and max(found) == 1
    assert count("document.querySelectorAll('#ngrams tbody tr').length") == (10 if explained.linear else 0)
    assert count("document.getElementById('linear').hidden") == (explained.linear is None)
    assert count("document.getElementById('attention').hidden") == (not explained.attributions.maps)
    if not explained.attributions.maps:
        count("document.querySelectorAll('#panels .token')[1].click()")
        assert count("document.querySelectorAll('[aria-pressed=true]').length") == methods
        return
    first = explained.attributions.maps[0]
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
    # Select a token, then deselect it.
    count("document.querySelectorAll('#from .token')[1].click()")
    pressed = "document.querySelectorAll('[aria-pressed=true]').length"
    assert count(pressed) > 1
    row = int(explained.attributions.maps[0].rows)
    assert explained.attributions.sequences[row].tokens[1] in count(
        "document.getElementById('details').textContent"
    )
    count(f"{KEY}('Escape')")
    assert count(pressed) == 0
    # The heat map shows the weight of its cell.
    count("[...document.querySelectorAll('#views button')][1].click()")
    count(f"{KEY}('ArrowDown', document.getElementById('map'))")
    details = count("document.getElementById('details').textContent")
    place = count("[state.layer, state.head, ...state.cell]")
    assert f"{100 * first.weights[tuple(place)]:.1f} %" in details
    if len(explained.attributions.maps) > 1:
        count("document.querySelectorAll('#maps button')[2].click()")
        sizes = explained.attributions.maps[2].weights.shape
        assert count("document.querySelectorAll('[role=gridcell]').length") == sizes[0] * (sizes[1] + 1)
    count("[...document.querySelectorAll('#views button')][0].click()")


def test_the_pictures_in_the_docs_are_small():
    text = (ROOT / "docs" / "how-to" / "explain.md").read_text("utf-8")
    names = re.findall(r"!\[[^\]]+\]\((.+?)\)", text)
    assert names == ["explain.png", "explain-phone.png"]
    for name in names:
        picture = (ROOT / "docs" / "how-to" / name).read_bytes()
        assert picture.startswith(b"\x89PNG") and len(picture) < 150_000
