"""The model card, read by the library of the hub."""

import pytest

from tests.training.reporting.reports import HOSTILE, hostile_report
from training.reporting.model_card import escape_markdown, model_card


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


def test_texts_are_escaped():
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
