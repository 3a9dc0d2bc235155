"""Builds the report of a fit or of an existing run, and writes it: report.html, and report.md as a model card."""

import base64
import dataclasses
import re
from pathlib import Path, PurePath
from typing import Any

from kmha.bundle.bundle import Bundle
from kmha.bundle.manifest import MATCH, MODEL_NAMES, read_manifest
from kmha.errors import InputError
from kmha.input_files import read_json
from training.cli.parser import parse
from training.config.config import FitConfig
from training.data.inputs import tokenize_parts
from training.evaluation.evaluator import predict_file
from training.html.page import html_page, read_asset, render, write_page
from training.io.examples import ColumnOverrides
from training.reporting import data_summary, overview
from training.reporting.blocks import (
    Block,
    Code,
    Items,
    KeyNumbers,
    Lead,
    Note,
    Picture,
    Report,
    Table,
    section,
)
from training.reporting.report_data import ReportData, ScoredSplit
from training.reporting.rows_to_review import pair_blocks, review_blocks
from training.reporting.verdict import verdict_blocks
from training.runs.run_folder import CONFIG, METRICS, identify_rows

_ROWS = "rows"
_SECTIONS = {
    "Verdict": verdict_blocks,
    "Scores": overview.score_blocks,
    "Learning curves": overview.curve_blocks,
    "Labels": overview.label_blocks,
    "Pairs": pair_blocks,
    "Calibration": overview.calibration_blocks,
    "Rows to review": review_blocks,
    "Text lengths": data_summary.length_blocks,
    "Data": data_summary.data_blocks,
    "Duplicates": data_summary.duplicate_blocks,
    "Reproducibility": data_summary.reproducibility_blocks,
}
# Pipeline tags and names of tasks on model hubs.
_PIPELINES = {
    "classify": ("text-classification", "Text classification"),
    "tag": ("token-classification", "Token classification"),
    "masked-lm": ("fill-mask", "Masked language modeling"),
}
# Scores that have another name on model hubs.
_HUB_METRICS = {"macro_f1": "f1", "span_f1": "f1"}
_HUB_METRICS |= {"token_accuracy": "accuracy", "masked_accuracy": "accuracy"}
_TO_FILL_IN = ("# Not known to the trainer; please fill in:", "# license: mit", "# language: en")
_DIGIT, _ADDRESS = re.compile(r"\d"), re.compile(r"[^\s@«»]+@[^\s@«»]+")
# Characters with a meaning in Markdown.
_SPECIAL = re.compile(r"([\\`*_{}\[\]#|~$!])")


def report_data_of(
    run: Path, data: Path, columns: ColumnOverrides, scratch: Path, mask_texts: bool = False
) -> ReportData:
    """Evaluates a run on a file and reads the metrics of its fit; InputError for invalid, no, or training rows."""
    manifest = read_manifest(run)
    name, origins = identify_rows(manifest, data)
    bundle = Bundle.load(run)
    task, part, predictions = predict_file(bundle, data, columns, scratch)
    if not len(part.rows):
        raise InputError(f"--data {data}: expected a row or more, got none")
    metrics = _read_metrics(run)
    if columns != ColumnOverrides(form=columns.form):
        # With other columns of the same file these are not scores of the same rows.
        for key in ("baseline", "linear_path", "teacher", "calibration"):
            metrics.pop(key, None)
    (scratch / "report_tokens").mkdir()
    # The split's own name may not be a valid file name.
    inputs = tokenize_parts(bundle.preprocessor, {_ROWS: part}, scratch / "report_tokens", task.masking)
    tokens = {key.replace(_ROWS, name): dataclasses.asdict(each) for key, each in inputs.counts.items()}
    return ReportData.of_bundle(
        bundle,
        manifest,
        run,
        name=run.resolve().name,
        task=task,
        metric=task.metric,
        splits=[ScoredSplit(name, part, predictions)],
        scores=task.scores(
            part, bundle.labels, predictions, {"thresholds": bundle.thresholds}, intervals=True
        ),
        metrics=metrics | {"tokens": metrics.get("tokens", {}) | tokens},
        details=bundle.details | {"data": origins},
        lengths={name: inputs.text_lengths(_ROWS)},
        train=None,
        command=_rerun_command(run, manifest),
        mask_texts=mask_texts,
    )


def _read_metrics(run: Path) -> dict[str, Any]:
    """Reads metrics.json; empty if it is missing or damaged."""
    try:
        return read_json(run / METRICS)
    except InputError:
        return {}


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
    return data_summary.rerun_command(dataclasses.replace(config, config=None))


def build_report(report_data: ReportData) -> Report:
    """Builds the report of a run."""
    shown = masked if report_data.mask_texts else lambda block: block
    sections = [section(title, map(shown, blocks(report_data))) for title, blocks in _SECTIONS.items()]
    model = MODEL_NAMES[report_data.kind].split(" ", 1)[1].capitalize()
    subtitle = f"{model}, evaluated on {report_data.scores['rows']:,} {report_data.evaluated.name} rows"
    found = [each for each in sections if each]
    return Report(report_data.name, subtitle, found, model_metadata(report_data))


def masked(block: Block) -> Block:
    """A block without digits and e-mail addresses in the texts of rows."""
    if not isinstance(block, Table):
        return block
    rows = [
        [
            _DIGIT.sub("#", _ADDRESS.sub("[e-mail]", cell)) if index in block.texts else cell
            for index, cell in enumerate(row)
        ]
        for row in block.rows
    ]
    return dataclasses.replace(block, rows=rows)


def report_page(report: Report) -> str:
    """The HTML of a report: one file without scripts, with its pictures inside."""
    body = render("training.reporting", "page.html", report=report, svg_uri=_svg_uri)
    return html_page(f"{report.title} · report", body, read_asset("training.reporting", "page.css"))


def _svg_uri(svg: str) -> str:
    encoded = base64.b64encode(svg.encode("utf-8", "replace")).decode("ascii")
    return f"data:image/svg+xml;base64,{encoded}"


def write_report(report: Report, html: Path, markdown: Path) -> None:
    """Writes a report as a page and as a model card, both together; raises InputError if a place is not writable."""
    write_page(html, report_page(report), {markdown: model_card(report)})


def model_metadata(report_data: ReportData) -> dict[str, Any]:
    """The front matter of a model card, as far as the trainer knows it."""
    pipeline, task = _pipeline(report_data)
    scores, split = report_data.scores, report_data.evaluated.name
    names = dict.fromkeys((report_data.metric, "accuracy", "macro_f1", "f1", "loss"))
    results = [
        {"type": _HUB_METRICS.get(name, name), "name": name, "value": float(scores[name])}
        for name in names
        if isinstance(scores.get(name), int | float)
    ]
    origins = report_data.details.get("data")
    origins = origins if isinstance(origins, dict) else {}
    origin = origins.get(split, origins.get("train", {}))
    file = PurePath(str(origin.get("name", split))).name
    result = {
        "task": {"type": pipeline, "name": task},
        "dataset": {"name": file, "type": file.partition(".")[0], "split": split},
        "metrics": results,
    }
    return {
        "library_name": "keras",
        "pipeline_tag": pipeline,
        "tags": ["kmha", "keras", "tensorflow"],
        "metrics": list(dict.fromkeys(each["type"] for each in results)),
        "model-index": [{"name": report_data.name, "results": [result]}],
    }


def _pipeline(report_data: ReportData) -> tuple[str, str]:
    if report_data.kind != MATCH:
        return _PIPELINES[report_data.kind]
    if report_data.evaluated.part.examples.named_queries:
        return "text-ranking", "Text ranking"
    if report_data.is_graded:
        return "sentence-similarity", "Sentence similarity"
    return "text-classification", "Classification of pairs of texts"


def model_card(report: Report) -> str:
    """The Markdown of a report; pictures are replaced by their descriptions."""
    lines = ["---", *_yaml(report.metadata), *_TO_FILL_IN, "---", ""]
    lines += [f"# {escape_markdown(report.title)}", "", escape_markdown(report.subtitle), ""]
    for each in report.sections:
        lines += [f"## {escape_markdown(each.title)}", ""]
        for block in each.blocks:
            lines += [*_block_lines(block), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def escape_markdown(text: str) -> str:
    """A text on one line that Markdown shows literally."""
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(r"\\\1", text)


def _block_lines(block: Block) -> list[str]:
    if isinstance(block, Note):
        return [escape_markdown(block.text)]
    if isinstance(block, Lead):
        return [f"**{escape_markdown(block.text)}**"]
    if isinstance(block, Items):
        return [f"- {escape_markdown(text)}" for text in block.texts]
    if isinstance(block, Code):
        # A fence longer than any run of backticks in the text.
        fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", block.text)), default=0))
        return [f"{fence}bash", block.text, fence]
    if isinstance(block, KeyNumbers):
        return [
            f"- {escape_markdown(name)}: **{escape_markdown(value)}**"
            f"{f' ({escape_markdown(comment)})' if comment else ''}"
            for name, value, comment in block.items
        ]
    if isinstance(block, Picture):
        return [f"Picture in report.html: {escape_markdown(block.alt)}"]
    marks = [
        ":--" if index in block.texts | block.wrapped or not index else "--:"
        for index in range(len(block.columns))
    ]
    rows = [list(map(escape_markdown, cells)) for cells in (block.columns, *block.rows)]
    rows.insert(1, marks)
    caption = [escape_markdown(block.caption), ""] if block.caption else []
    return [*caption, *(f"| {' | '.join(cells)} |" for cells in rows)]


def _yaml(value: Any, indent: str = "") -> list[str]:
    """YAML lines of dictionaries, lists, strings and floats; all strings are quoted."""
    lines = []
    pairs = value.items() if isinstance(value, dict) else ((None, each) for each in value)
    for name, each in pairs:
        start = f"{indent}- " if name is None else f"{indent}{name}:"
        if isinstance(each, dict | list):
            inner = _yaml(each, f"{indent}  ")
            # In a list the first entry follows the dash.
            lines += [start + inner[0].lstrip(), *inner[1:]] if name is None else [start, *inner]
        else:
            gap = "" if name is None else " "
            # Without an exponent, which some YAML readers do not accept as a number.
            lines.append(f"{start}{gap}{_quoted(each) if isinstance(each, str) else f'{each:.6f}'}")
    return lines


def _quoted(text: str) -> str:
    shown = (c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08x}" for c in text)
    return f'"{"".join(shown)}"'
