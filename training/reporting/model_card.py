"""A report as Markdown, in the format of a model card: front matter for model hubs, then tables."""

import re
from pathlib import PurePath
from typing import Any

from kmha.bundle.manifest import MATCH
from training.reporting.blocks import Block, Code, KeyNumbers, Note, Picture, Report
from training.reporting.report_data import ReportData

# Pipeline tags and names of tasks on model hubs.
_PIPELINES = {
    "classify": ("text-classification", "Text classification"),
    "tag": ("token-classification", "Token classification"),
    "masked-lm": ("fill-mask", "Masked language modeling"),
}
# Scores that have another name on model hubs.
_HUB_METRICS = {
    "macro_f1": "f1",
    "span_f1": "f1",
    "token_accuracy": "accuracy",
    "masked_accuracy": "accuracy",
}
_TO_FILL_IN = ("# Not known to the trainer; please fill in:", "# license: mit", "# language: en")
# Characters with a meaning in Markdown.
_SPECIAL = re.compile(r"([\\`*_{}\[\]#|~$!])")


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
    for section in report.sections:
        lines += [f"## {escape_markdown(section.title)}", ""]
        for block in section.blocks:
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
    marks = [":--" if index in block.texts or not index else "--:" for index in range(len(block.columns))]
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
