"""A run's report put together and written: report.html, and report.md in the form of a model card."""

from pathlib import Path, PurePath
from typing import Any

from kmha.bundle.manifest import MATCH, MODEL_NAMES
from training.html.page import write_page
from training.reporting.blocks import Report, section
from training.reporting.data_summary import duplicates, lengths, rows_read
from training.reporting.html import page
from training.reporting.model_card import card
from training.reporting.overview import curves, overview, trust
from training.reporting.per_label import labels
from training.reporting.rankings import rankings
from training.reporting.report_data import ReportData
from training.reporting.reproducibility import making
from training.reporting.rows_to_review import doubts

# Of the tasks, as model hubs call what a model does.
_PIPELINES = {
    "classify": ("text-classification", "Text classification"),
    "tag": ("token-classification", "Token classification"),
    "masked-lm": ("fill-mask", "Masked language modeling"),
}

# Of scores that hubs know by another name.
_HUB_METRICS = {
    "macro_f1": "f1",
    "span_f1": "f1",
    "token_accuracy": "accuracy",
    "masked_accuracy": "accuracy",
}


def report(report_data: ReportData) -> Report:
    """The report of a run."""
    sections = (
        section("Scores", overview(report_data)),
        section("Learning curves", curves(report_data)),
        section("Labels", labels(report_data)),
        section("Pairs", rankings(report_data)),
        section("Probabilities", trust(report_data)),
        section("Rows to read", doubts(report_data)),
        section("Lengths", lengths(report_data)),
        section("Rows", rows_read(report_data)),
        section("Duplicates", duplicates(report_data)),
        section("Making", making(report_data)),
    )
    rows = f"{report_data.scores['rows']:,} {report_data.evaluated.name} rows"
    told = f"{MODEL_NAMES[report_data.kind].split(' ', 1)[1].capitalize()}, judged on {rows}"
    return Report(report_data.name, told, [each for each in sections if each], _card(report_data))


def write_report(made: Report, html: Path, markdown: Path) -> None:
    """Writes a report twice, each file beside its place first.

    Args:
        made: The report.
        html: Where the page goes; one that stands there is replaced.
        markdown: Likewise of the model card.

    Raises:
        InputError: Nobody can write there.
    """
    for path, content in ((html, page(made)), (markdown, card(made))):
        write_page(path, content)


def _card(report_data: ReportData) -> dict[str, Any]:
    """The front matter of a model card; what only the owner of the rows can know is left out."""
    pipeline, task = _pipeline(report_data)
    scores = report_data.scores
    named = dict.fromkeys((report_data.metric, "accuracy", "macro_f1", "f1", "loss"))
    found = [name for name in named if isinstance(scores.get(name), int | float)]
    origins = report_data.details.get("data")
    origins = origins if isinstance(origins, dict) else {}
    evaluated = origins.get(report_data.evaluated.name, origins.get("train", {}))
    name = PurePath(str(evaluated.get("name", report_data.evaluated.name))).name
    results = [
        {"type": _HUB_METRICS.get(each, each), "name": each, "value": float(scores[each])} for each in found
    ]
    dataset = {"name": name, "type": name.partition(".")[0], "split": report_data.evaluated.name}
    return {
        "library_name": "keras",
        "pipeline_tag": pipeline,
        "tags": ["kmha", "keras", "tensorflow"],
        "metrics": list(dict.fromkeys(each["type"] for each in results)),
        "model-index": [
            {
                "name": report_data.name,
                "results": [
                    {"task": {"type": pipeline, "name": task}, "dataset": dataset, "metrics": results}
                ],
            }
        ],
    }


def _pipeline(report_data: ReportData) -> tuple[str, str]:
    if report_data.kind != MATCH:
        return _PIPELINES[report_data.kind]
    if report_data.evaluated.part.examples.named_queries:
        return "text-ranking", "Text ranking"
    if report_data.graded:
        return "sentence-similarity", "Sentence similarity"
    return "text-classification", "Classification of pairs of texts"
