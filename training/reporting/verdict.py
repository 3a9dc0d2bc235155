"""The verdict of a run: which model is better and by how much, where it fails, and what to do next."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kmha.errors import printable
from training.cli.parser import format_table
from training.metrics.paired import COMPARISON, NO_DIFFERENCE, format_difference
from training.reporting.blocks import (
    Block,
    Code,
    Items,
    Lead,
    Note,
    format_interval,
    format_percent,
    format_score,
    score_name,
)
from training.reporting.overview import INTERVAL, confusion_matrix
from training.reporting.report_data import ReportData
from training.runs.run_folder import REPORT

# Calibration errors up to the first are small, above the second large.
_SMALL_ERROR, _LARGE_ERROR = 0.05, 0.1


def headline(scores: Mapping[str, Any], other: Mapping[str, Any], metric: str, name: str) -> str:
    """Which of a model and another one is better and by how much, in a sentence.

    For example "The model is better than the linear baseline: accuracy 0.9625 against 0.9547, difference +0.0078 (95 %
    interval +0.0011 to +0.0144)."
    """
    found = other.get(COMPARISON, {}).get(metric)
    shown = score_name(metric)
    if not other or found is None:
        against = f", {name} {format_score(other.get(metric))}, not compared row by row" if other else ""
        return f"Score of the model: {shown} {format_score(scores.get(metric))}{against}."
    low, high = found["interval"]
    values = (
        f"{shown} {format_score(scores.get(metric))} against {format_score(other.get(metric))},"
        f" difference {found['difference']:+.4f} (95 % interval {low:+.4f} to {high:+.4f})"
    )
    if found["verdict"] == NO_DIFFERENCE:
        return f"No difference between the model and the {name} was shown: {values}."
    is_better = found["verdict"] == "model wins"
    return f"The model is {'better' if is_better else 'worse'} than the {name}: {values}."


def verdict_blocks(report_data: ReportData) -> Iterator[Block]:
    """The comparison with the baseline, the weakest spots, and the next commands."""
    scores, metric = report_data.scores, report_data.metric
    baseline_name = report_data.task.traits.baseline_name
    yield Lead(headline(scores, report_data.scores_of("baseline"), metric, baseline_name))
    points = [*_label_points(report_data), *_calibration_points(report_data)]
    if linear := report_data.scores_of("linear_path"):
        points.insert(0, headline(scores, linear, metric, "linear path alone"))
    if points:
        yield Items(points)
    for step in report_data.metrics.get("next", []):
        yield Note(f"Next, {step['reason']}:")
        yield Code(step["command"])


def _label_points(report_data: ReportData) -> Iterator[str]:
    """The label with the lowest F1, if it is below 1, and the most frequent confusion."""
    scores = report_data.scores
    per_label = scores.get("per_class") or scores.get("per_type") or {}
    counted = {name: each for name, each in per_label.items() if each["support"]}
    if len(counted) > 1 and any(each["f1"] < 1 for each in counted.values()):
        name = min(counted, key=lambda each: counted[each]["f1"])
        each = counted[name]
        yield (
            f"Weakest label: {name}, F1 {format_score(each['f1'])}, precision {format_score(each['precision'])},"
            f" recall {format_score(each['recall'])}, in {each['support']:,} of the evaluated rows."
        )
    if "confusion_matrix" not in scores:
        return
    matrix, names = confusion_matrix(report_data)
    wrong = matrix * (1 - np.eye(len(matrix), dtype=np.int64))
    row, column = np.unravel_index(int(wrong.argmax()), wrong.shape)
    if count := int(wrong[row, column]):
        share = f"{format_percent(count / max(1, int(matrix[row].sum())))} of {names[row]}"
        yield f"Most frequent confusion: {names[row]} predicted as {names[column]}, {count:,} times ({share})."


def _calibration_points(report_data: ReportData) -> Iterator[str]:
    error = report_data.scores.get("ece")
    if error is None:
        return
    size = "small" if error <= _SMALL_ERROR else "moderate" if error <= _LARGE_ERROR else "large"
    yield (
        f"Calibration error: {format_score(error)}, {size}. Probabilities differ from the share of correct predictions"
        f" by {100 * error:.1f} percentage points on average."
    )


def terminal_lines(run: Path, metrics: dict[str, Any]) -> list[str]:
    """The end of a fit for a terminal: a table of the models, the verdict, the report and the next commands."""
    metric, split, baseline = metrics["metric"], metrics["judged_on"], metrics.get("baseline", {})
    scores, baseline_name = metrics[split], baseline.get("name", "baseline")
    others = {"linear path alone": metrics.get("linear_path"), baseline_name: baseline}
    rows = [("", score_name(metric), INTERVAL, "model minus this")]
    for name, each in {"model": scores, **others}.items():
        if each:
            found = each.get(COMPARISON, {}).get(metric)
            interval = format_interval(each.get("intervals", {}).get(metric))
            rows.append(
                (name, format_score(each.get(metric)), interval, format_difference(found) if found else "")
            )
    table = format_table(rows if any(row[3] for row in rows[1:]) else [row[:3] for row in rows])
    lines = ["", f"{scores['rows']:,} {split} rows", *table, ""]
    if baseline:
        lines += [headline(scores, baseline, metric, baseline_name)]
    if (run / REPORT).exists():
        lines.append(f"Report: {run / REPORT}")
    steps = (line for each in metrics["next"] for line in (f"  # {each['reason']}", f"  {each['command']}"))
    return [printable(line) for line in (*lines, "Next:", *steps)]
