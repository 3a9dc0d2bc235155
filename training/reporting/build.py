"""Builds the report of a fit or of an existing run, and writes it: report.html, and report.md as a model card."""

import base64
import dataclasses
import json
from pathlib import Path
from typing import Any

from kmha.bundle.bundle import Bundle
from kmha.bundle.manifest import MODEL_NAMES, read_manifest
from kmha.errors import InputError
from training.cli.parser import parse
from training.config.config import FitConfig
from training.data.inputs import cut_parts
from training.evaluation.evaluator import predict_file
from training.html.page import html_page, read_asset, render, write_page
from training.io.examples import ColumnOverrides
from training.reporting.blocks import Report, section
from training.reporting.data_summary import (
    data_blocks,
    duplicate_blocks,
    length_blocks,
    reproducibility_blocks,
    rerun_command,
)
from training.reporting.model_card import model_card, model_metadata
from training.reporting.overview import calibration_blocks, curve_blocks, label_blocks, score_blocks
from training.reporting.report_data import ReportData, ScoredSplit
from training.reporting.rows_to_review import pair_blocks, review_blocks
from training.runs.run_folder import CONFIG, METRICS, identify_rows

_ROWS = "rows"

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


def report_data_of(run: Path, data: Path, columns: ColumnOverrides, scratch: Path) -> ReportData:
    """Evaluates a run on the rows of a file, and reads the metrics of its fit.

    Raises InputError if the file or a row of it is invalid, it has no rows, or the run was trained on it.
    """
    manifest = read_manifest(run)
    name, origins = identify_rows(manifest, data)
    bundle = Bundle.load(run)
    task, part, predictions = predict_file(bundle, data, columns, scratch)
    if not len(part.rows):
        raise InputError(f"--data {data}: expected a row or more, got none")
    metrics = _read_metrics(run)
    if any(dataclasses.astuple(columns)):
        # With other columns of the same file these are not scores of the same rows.
        for key in ("baseline", "teacher", "calibration"):
            metrics.pop(key, None)
    (scratch / "report_tokens").mkdir()
    # The split's own name may not be a valid file name.
    inputs = cut_parts(bundle.preprocessor, {_ROWS: part}, scratch / "report_tokens", task.masking)
    tokens = {key.replace(_ROWS, name): dataclasses.asdict(each) for key, each in inputs.counts.items()}
    return ReportData.of_bundle(
        bundle,
        manifest,
        run,
        name=run.resolve().name,
        task=task,
        metric=bundle.details.get("metric") or task.metric,
        splits=[ScoredSplit(name, part, predictions)],
        scores=task.scores(
            part, bundle.labels, predictions, {"thresholds": bundle.thresholds}, intervals=True
        ),
        metrics=metrics | {"tokens": metrics.get("tokens", {}) | tokens},
        details=bundle.details | {"data": origins},
        lengths={name: inputs.text_lengths(_ROWS)},
        train=None,
        command=_rerun_command(run, manifest),
    )


def _read_metrics(run: Path) -> dict[str, Any]:
    """Reads metrics.json; empty if it is missing or damaged."""
    try:
        found = json.loads((run / METRICS).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _rerun_command(run: Path, manifest: dict[str, Any]) -> str:
    """The command that makes the run again; empty if its settings are not known."""
    if "pruned" in manifest:
        # training.fit with the same settings would train the unpruned model.
        pruned = manifest["pruned"]
        return str(pruned.get("command", "")) if isinstance(pruned, dict) else ""
    try:
        config = parse(FitConfig, ["--config", str(run / CONFIG)], "python -m training.fit")
    except (InputError, SystemExit):
        return ""
    return rerun_command(dataclasses.replace(config, config=None))


def build_report(report_data: ReportData) -> Report:
    """Builds the report of a run."""
    sections = [section(title, blocks(report_data)) for title, blocks in _SECTIONS.items()]
    model = MODEL_NAMES[report_data.kind].split(" ", 1)[1].capitalize()
    subtitle = f"{model}, evaluated on {report_data.scores['rows']:,} {report_data.evaluated.name} rows"
    found = [each for each in sections if each]
    return Report(report_data.name, subtitle, found, model_metadata(report_data))


def report_page(report: Report) -> str:
    """The HTML of a report: one file without scripts, with its pictures inside."""
    body = render("training.reporting", "page.html", report=report, svg_uri=_svg_uri)
    return html_page(f"{report.title} · report", body, read_asset("training.reporting", "page.css"))


def _svg_uri(svg: str) -> str:
    encoded = base64.b64encode(svg.encode("utf-8", "replace")).decode("ascii")
    return f"data:image/svg+xml;base64,{encoded}"


def write_report(report: Report, html: Path, markdown: Path) -> None:
    """Writes a report as a page and as a model card, each atomically; raises InputError if a place is not writable."""
    write_page(html, report_page(report))
    write_page(markdown, model_card(report))
