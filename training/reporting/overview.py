"""The report blocks of scores: compared with the baseline, by epoch, by label, and calibration."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from scipy.special import log_softmax, logit, softmax
from scipy.stats import binomtest

from kmha.bundle.manifest import TAG
from kmha.calibration import Calibration
from training.metrics.classification import calibration_error, reliability_bins
from training.metrics.confusion import LabelCounts, f1, indicator_counts, matrix_counts, precision, recall
from training.metrics.paired import describe_comparison
from training.reporting import figures
from training.reporting.blocks import (
    Block,
    KeyNumbers,
    Note,
    Table,
    format_interval,
    format_percent,
    format_score,
    score_name,
)
from training.reporting.matplotlib_style import can_draw
from training.reporting.report_data import ReportData, multi_label_rows, single_label_items
from training.reporting.rows_to_review import MIN_ROWS

NO_PICTURES = "Pictures were left out: matplotlib is not installed; pip install 'kmha[report]'."
# The scores in the table; metrics.json has all.
COMPARED = (
    *("accuracy", "span_f1", "token_accuracy", "macro_f1", "micro_f1", "weighted_f1"),
    *("f1", "precision", "recall"),
    *("roc_auc", "average_precision", "map", "mrr", "ndcg_at_10", "recall_at_1"),
    *("pearson", "spearman", "mse", "mae", "masked_accuracy", "perplexity", "ece", "loss"),
)
_SMALLEST = 1e-12

_LEVEL = 0.95
INTERVAL = "95 % interval"
MISSED = "(none)"
MAX_CONFUSIONS = 12
_METRICS = {"f1": f1, "precision": precision, "recall": recall}


def score_blocks(report_data: ReportData) -> Iterator[Block]:
    """The main score with its interval and the baseline's, and the table of scores."""
    scores, baseline, metric = report_data.scores, report_data.scores_of("baseline"), report_data.metric
    split, baseline_name = report_data.evaluated.name, report_data.task.traits.baseline_name
    interval = scores.get("intervals", {}).get(metric)
    rows = f"{scores['rows']:,} {split} rows"
    comment = f"95 % interval: {format_interval(interval)}" if interval else rows
    items = [(score_name(metric), format_score(scores.get(metric)), comment)]
    if baseline:
        value = format_score(baseline.get(metric))
        items.append((f"{score_name(metric)}, {baseline_name}", value, str(baseline.get("description", ""))))
    if scores.get("ece") is not None:
        before = report_data.metrics.get("calibration", {}).get(split, {}).get("ece_before")
        comment = "0 is best" if before is None else f"without the fitted temperature {format_score(before)}"
        items.append(("calibration error", format_score(scores["ece"]), comment))
    items.append(("evaluated rows", f"{scores['rows']:,}", split))
    yield KeyNumbers(items)
    if baseline:
        yield Note(". ".join(describe_comparison(scores, baseline, metric, baseline_name)) + ".")
    if fewshot := report_data.metrics.get("fewshot"):
        yield Note(describe_few_labels(fewshot))
    if not can_draw():
        yield Note(NO_PICTURES)
    yield _score_table(report_data)
    if others := baseline.get("baselines"):
        shown = ", ".join(f"{name} {format_score(values[metric])}" for name, values in others.items())
        yield Note(f"All baselines, {score_name(metric)}: {shown}.")


def describe_few_labels(choice: dict[str, Any]) -> str:
    """The choice between the candidates of few labels, and what the validation scores are."""
    losses = ", ".join(f"{name} {format_score(loss)}" for name, loss in choice["losses"].items())
    text = f"Few labels: {choice['stage']}; loss in {choice['folds']}-fold cross-validation: {losses}."
    if choice["cross_validated"]:
        text += " Validation scores are cross-validated: models that were not trained on a row predict it."
    return text


def _score_table(report_data: ReportData) -> Table:
    models = [
        ("model", report_data.scores),
        ("linear path alone", report_data.scores_of("linear_path")),
        (report_data.task.traits.baseline_name, report_data.scores_of("baseline")),
        ("teacher", report_data.scores_of("teacher")),
    ]
    models = [(name, scores) for name, scores in models if scores or name == "model"]
    columns, rows = ["score"], [[key] for key in COMPARED if _is_number(report_data.scores.get(key))]
    for name, scores in models:
        intervals = scores.get("intervals", {})
        columns += [name, INTERVAL] if intervals else [name]
        for row in rows:
            value = scores.get(row[0])
            row.append(format_score(value) if _is_number(value) else "")
            row += [format_interval(intervals.get(row[0]))] if intervals else []
    rows = [(score_name(key), *cells) for key, *cells in rows]
    return Table(f"Scores of the {report_data.evaluated.name} rows", columns, rows)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def curve_blocks(report_data: ReportData) -> Iterator[Block]:
    """Loss and score by epoch."""
    history, metric = report_data.metrics.get("history", []), report_data.metric
    if not history:
        return
    best, parts = report_data.metrics.get("best_epoch"), report_data.metrics.get("parts_of_epoch", 1)
    caption, name = (f"Parts, {parts} to an epoch", "part") if parts > 1 else ("Epochs", "epoch")
    if can_draw():
        yield from figures.learning_curves(history, metric, best, name)
    rows = [
        (
            f"{each['epoch'] + 1}{' (saved)' if each['epoch'] == best else ''}",
            *(format_score(each[key]) for key in ("loss", "val_loss", f"val_{metric}")),
            f"{each['learning_rate']:.2e}",
            f"{each['tokens_per_second']:,.0f}",
        )
        for each in history
    ]
    score = f"validation {score_name(metric)}"
    columns = (name, "training loss", "validation loss", score, "learning rate", "tokens per second")
    yield Table(caption, columns, rows)


def calibration_blocks(report_data: ReportData) -> Iterator[Block]:
    """Accuracy by predicted probability: reliability diagrams, and the coverage at some confidences."""
    pairs = _confidence_and_correctness(report_data)
    if not pairs:
        return
    errors = [*(calibration_error(*pair) for pair in pairs[:-1]), report_data.scores.get("ece")]
    is_calibrated = report_data.calibration != Calibration()
    titles = (
        ("without calibration", "with calibration")[-len(pairs) :] if is_calibrated else ("not calibrated",)
    )
    if can_draw():
        states = zip(titles, pairs, errors, strict=True)
        models = [reliability_bins(title, *pair, error) for title, pair, error in states]
        yield figures.reliability_diagram(models)
    # Most probabilities of several labels are near 0, and correct.
    if items := single_label_items(report_data, report_data.evaluated):
        if len(items.true) >= MIN_ROWS:
            yield _coverage_table(items.confidence, items.correct)
        if items.words is None:
            yield Note("training.calibrate --precision finds the probability below which to abstain.")


def _coverage_table(confidence: np.ndarray, correct: np.ndarray) -> Table:
    rows = []
    for least in (0.5, 0.7, 0.8, 0.9, 0.95, 0.99):
        chosen = confidence >= least
        accuracy = format_score(float(correct[chosen].mean())) if chosen.any() else "–"
        rows.append((f"{least:.2f}", format_percent(float(chosen.mean())), accuracy))
    caption = "Share and accuracy of the predictions with at least a probability"
    return Table(caption, ("probability at least", "predictions", "accuracy"), rows)


def _confidence_and_correctness(report_data: ReportData) -> list[tuple[np.ndarray, np.ndarray]]:
    """Probabilities and whether they were correct: before calibration, where it can be undone, and after it."""
    split, undo = report_data.evaluated, report_data.calibration.inverse()
    is_calibrated = undo != Calibration()
    if report_data.is_multi_label or report_data.target == "binary":
        probabilities = np.asarray(split.predictions, np.float64)
        if report_data.is_multi_label:
            true = multi_label_rows(report_data, split).true[:, : probabilities.shape[1]]
        else:
            true = report_data.task.targets(split.part, report_data.labels)[:, :1] > 0
        states = [probabilities]
        if is_calibrated:
            logits = undo.apply(logit(np.clip(probabilities, _SMALLEST, 1 - _SMALLEST)))
            states.insert(0, 1 / (1 + np.exp(-logits)))
        return [(each.ravel(), true.ravel()) for each in states]
    items = single_label_items(report_data, split)
    if items is None:
        return []
    pairs = [(items.confidence, items.correct)]
    if is_calibrated and items.words is None:
        # Logits are defined up to a constant, so log probabilities serve as logits.
        logits = log_softmax(np.log(np.maximum(items.probabilities, _SMALLEST)), axis=1)
        before = softmax(undo.apply(logits), axis=1)
        pairs.insert(0, (before[np.arange(len(before)), items.predicted], items.correct))
    return pairs


def wilson_interval(hits: int, total: int) -> list[float]:
    """The Wilson interval of hits / total, [lower, upper]; empty for a total of 0."""
    return list(binomtest(int(hits), int(total)).proportion_ci(_LEVEL, "wilson")) if total else []


def class_intervals(hits: int, predicted: int, actual: int) -> dict[str, list[float]]:
    """Intervals of "precision", "recall" and "f1" of a label, each [lower, upper], empty if undefined.

    The label is predicted and true so often; `hits` are correct predictions.
    """
    jaccard = wilson_interval(hits, predicted + actual - hits)
    return {
        "precision": wilson_interval(hits, predicted),
        "recall": wilson_interval(hits, actual),
        "f1": [2 * end / (1 + end) for end in jaccard],
    }


def label_names(report_data: ReportData) -> list[str]:
    """The names of labels or span types in the order of the scores; empty if there are none."""
    names: list[str] = list(report_data.scores.get("per_class") or report_data.scores.get("per_type") or ())
    if not names and report_data.target == "binary":
        return ["0", "1"]
    return names


def confusion_matrix(report_data: ReportData) -> tuple[np.ndarray, list[str]]:
    """The confusion matrix, int64 [N, N], and the N names of its rows and columns."""
    matrix, names = np.array(report_data.scores["confusion_matrix"]), label_names(report_data)
    # Matrices of spans have one more row and column, for missed and for superfluous spans.
    return matrix, [*names, *[MISSED] * (len(matrix) - len(names))]


def label_blocks(report_data: ReportData) -> Iterator[Block]:
    """The table of labels or span types, and their confusion matrix."""
    names = label_names(report_data)
    if not names:
        return
    if report_data.is_multi_label:
        found = multi_label_rows(report_data, report_data.evaluated)
        yield _label_table(names, indicator_counts(found.true, found.predicted), "label")
        return
    if "confusion_matrix" not in report_data.scores:
        yield Note(
            f"metrics.json has the scores of {len(names):,} labels, which are too many for a table here."
        )
        return
    matrix, of_matrix = confusion_matrix(report_data)
    task: Any = report_data.task
    kind = "label" if report_data.kind != TAG else "tag" if task.given_scheme == "none" else "type"
    yield _label_table(names, matrix_counts(matrix), kind)
    yield from _confusion_blocks(matrix, of_matrix)


def _label_table(names: Sequence[str], counts: LabelCounts, kind: str) -> Table:
    values = {name: metric(counts) for name, metric in _METRICS.items()}
    rows = []
    for place, name in enumerate(names):
        intervals = class_intervals(*(int(each[place]) for each in counts))
        cells = (
            cell
            for key in _METRICS
            for cell in (format_score(float(values[key][place])), format_interval(intervals[key]))
        )
        rows.append((name, f"{int(counts.actual[place]):,}", *cells))
    columns = (
        kind,
        f"rows of the {kind}",
        *(title for name in ("F1", "precision", "recall") for title in (name, INTERVAL)),
    )
    return Table(f"Each {kind}, with Wilson intervals", columns, rows)


def _confusion_blocks(matrix: np.ndarray, names: list[str]) -> Iterator[Block]:
    if can_draw() and len(names) <= figures.MAX_DRAWN_LABELS:
        yield figures.confusion(matrix, names, "label", "prediction")
    elif can_draw():
        text = f"The confusion matrix of {len(names)} labels is not drawn; the table has its largest cells."
        yield Note(text)
    wrong = matrix * (1 - np.eye(len(matrix), dtype=np.int64))
    order = np.argsort(-wrong, axis=None, kind="stable")[:MAX_CONFUSIONS]
    cells = [(int(place) // len(names), int(place) % len(names)) for place in order if wrong.flat[place]]
    totals = np.maximum(matrix.sum(axis=1), 1)
    rows = []
    for row, column in cells:
        count = wrong[row, column]
        rows.append((names[row], names[column], f"{count:,}", format_percent(count / totals[row])))
    columns = ("label", "prediction", "count", "share of the label")
    yield Table("Most frequent confusions", columns, rows)
