"""Builds the report of a run and writes it: report.html, and report.md as a model card."""

import base64
from pathlib import Path

from kmha.bundle.manifest import MODEL_NAMES
from training.html.page import html_page, read_asset, render, write_page
from training.reporting.blocks import Report, section
from training.reporting.data_summary import data_blocks, duplicate_blocks, length_blocks
from training.reporting.model_card import model_card, model_metadata
from training.reporting.overview import calibration_blocks, curve_blocks, score_blocks
from training.reporting.per_label import label_blocks
from training.reporting.rankings import pair_blocks
from training.reporting.report_data import ReportData
from training.reporting.reproducibility import reproducibility_blocks
from training.reporting.rows_to_review import review_blocks

_SECTIONS = {
    "Scores": score_blocks,
    "Learning curves": curve_blocks,
    "Labels": label_blocks,
    "Pairs": pair_blocks,
    "Calibration": calibration_blocks,
    "Rows to review": review_blocks,
    "Text lengths": length_blocks,
    "Data": data_blocks,
    "Duplicates": duplicate_blocks,
    "Reproducibility": reproducibility_blocks,
}


def build_report(report_data: ReportData) -> Report:
    """Builds the report of a run."""
    sections = [section(title, blocks(report_data)) for title, blocks in _SECTIONS.items()]
    model = MODEL_NAMES[report_data.kind].split(" ", 1)[1].capitalize()
    subtitle = f"{model}, evaluated on {report_data.scores['rows']:,} {report_data.evaluated.name} rows"
    return Report(
        report_data.name, subtitle, [each for each in sections if each], model_metadata(report_data)
    )


def report_page(report: Report) -> str:
    """The HTML of a report: one file without scripts, with its pictures inside."""
    body = render("training.reporting", "page.html", report=report, svg_uri=_svg_uri)
    return html_page(f"{report.title} · report", body, read_asset("training.reporting", "page.css"))


def _svg_uri(svg: str) -> str:
    encoded = base64.b64encode(svg.encode("utf-8", "replace")).decode("ascii")
    return f"data:image/svg+xml;base64,{encoded}"


def write_report(report: Report, html: Path, markdown: Path) -> None:
    """Writes a report as a page and as a model card, each atomically; existing files are replaced.

    Raises:
        InputError: A place is not writable.
    """
    write_page(html, report_page(report))
    write_page(markdown, model_card(report))
