"""The model card, read by the libraries that hubs read it with."""

import pytest

from tests.training.reporting.reports import HOSTILE, hostile_report
from training.reporting.model_card import card, plain


def test_the_hub_reads_the_results():
    hub = pytest.importorskip("huggingface_hub")
    made = hostile_report()
    data = hub.ModelCard(card(made)).data
    assert (data.library_name, data.pipeline_tag, data.metrics) == (
        "keras",
        "text-classification",
        ["accuracy"],
    )
    # What the fit cannot know is left to the owner.
    assert data.license is None and data.language is None
    (result,) = data.eval_results
    assert (result.metric_type, result.metric_value, result.dataset_type) == ("accuracy", 0.5, "rows")
    assert data.model_name == made.card["model-index"][0]["name"] == result.dataset_name


def test_markdown_shows_texts_as_they_are():
    markdown = pytest.importorskip("markdown")
    body = card(hostile_report()).split("---\n", 2)[2]
    shown = markdown.markdown(body, extensions=["tables", "fenced_code"])
    for tag in ("<script", "<img", "<a ", "<em>", "onerror=alert(1)>"):
        assert tag not in shown
    assert shown.count("<table>") == 1 and shown.count("<tr>") == 3
    assert shown.count("<td") == 4
    assert "<h1>" in shown and shown.count("<h2>") == 2


def test_texts_stay_on_one_line():
    assert plain("a\n\n| b\x00\u2028c") == "a \\| b c"
    assert plain(HOSTILE).count("|") == plain(HOSTILE).count("\\|") == 1
