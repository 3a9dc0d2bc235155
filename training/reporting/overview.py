"""The first things to see: how good the model is, beside the baseline; how it got there; whether it can be trusted."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.special import log_softmax, logit, softmax

from kmha.calibration import Calibration
from training.baselines.text_linear import compare
from training.evaluation.reliability import ReliabilityBins, reliability_bins
from training.metrics.classification import calibration_error
from training.reporting import figures as pictures
from training.reporting.answered_items import answered
from training.reporting.blocks import Block, Figures, Note, Table, between, percent, score
from training.reporting.label_errors import LEAST_ROWS
from training.reporting.matplotlib_style import can_draw
from training.reporting.multi_label import several_labels
from training.reporting.report_data import ReportData

NO_PICTURES = "Pictures were left out: matplotlib is not installed; pip install 'kmha[report]'."
# Of all scores, those that are compared; others are in metrics.json.
COMPARED = (
    "accuracy",
    "span_f1",
    "token_accuracy",
    "macro_f1",
    "micro_f1",
    "weighted_f1",
    "f1",
    "precision",
    "recall",
    "roc_auc",
    "average_precision",
    "map",
    "mrr",
    "ndcg_at_10",
    "recall_at_1",
    "pearson",
    "spearman",
    "mse",
    "mae",
    "masked_accuracy",
    "perplexity",
    "ece",
    "loss",
)
_SMALLEST = 1e-12


def overview(report_data: ReportData) -> Iterator[Block | None]:
    """The main score with its interval, beside the baseline's, and all scores in a table."""
    scores, base, metric = report_data.scores, report_data.baseline, report_data.metric
    ends = scores.get("intervals", {}).get(metric)
    rows = f"{scores['rows']:,} {report_data.evaluated.name} rows"
    told = f"95 % of resamples: {between(ends)}" if ends else rows
    items = [(metric, score(scores.get(metric)), told)]
    if base:
        name = report_data.task.baseline_name
        items.append((f"{metric}, {name}", score(base.get(metric)), str(base.get("description", ""))))
    if scores.get("ece") is not None:
        before = (
            report_data.metrics.get("calibration", {}).get(report_data.evaluated.name, {}).get("ece_before")
        )
        changed = f"without the fitted temperature {score(before)}" if before is not None else "0 is best"
        items.append(("calibration error", score(scores["ece"]), changed))
    items.append(("rows judged", f"{scores['rows']:,}", report_data.evaluated.name))
    yield Figures(items)
    if base:
        yield Note(f"{compare(scores, base, metric, report_data.task.baseline_name)}.")
    if not can_draw():
        yield Note(NO_PICTURES)
    yield _scores(report_data)
    if others := base.get("baselines"):
        shown = ", ".join(f"{name} {score(values[metric])}" for name, values in others.items())
        yield Note(f"{metric} of every baseline: {shown}.")


def _scores(report_data: ReportData) -> Table:
    scores = report_data.scores
    others = (report_data.baseline, report_data.task.baseline_name), (report_data.teacher, "teacher")
    sides = [(scores, "model"), *(other for other in others if other[0])]
    columns = ["score", *(name for _, side in sides for name in (side, "95 %"))]
    rows = [
        (
            name,
            *(
                c
                for side, _ in sides
                for c in (_value(side, name), between(side.get("intervals", {}).get(name)))
            ),
        )
        for name in COMPARED
        if isinstance(scores.get(name), int | float)
    ]
    return Table(f"Scores of the {report_data.evaluated.name} rows", columns, rows)


def _value(scores: dict[str, Any], name: str) -> str:
    value = scores.get(name)
    return score(value) if isinstance(value, int | float) else ""


def curves(report_data: ReportData) -> Iterator[Block | None]:
    """How loss and score went over the epochs."""
    history, metric = report_data.metrics.get("history", []), report_data.metric
    if not history:
        return
    parts = report_data.metrics.get("parts_of_epoch", 1)
    caption, name = (f"Parts, {parts} to an epoch", "part") if parts > 1 else ("Epochs", "epoch")
    if can_draw():
        yield pictures.learning_curves(history, metric, report_data.metrics.get("best_epoch"), name)
    yield Table(
        caption,
        (name, "training loss", "validation loss", metric, "learning rate", "tokens a second"),
        [
            (
                f"{each['epoch'] + 1}{' (kept)' if each['epoch'] == report_data.metrics.get('best_epoch') else ''}",
                score(each["loss"]),
                score(each["val_loss"]),
                score(each[f"val_{metric}"]),
                f"{each['learning_rate']:.2e}",
                f"{each['tokens_per_second']:,.0f}",
            )
            for each in history
        ],
    )


def trust(report_data: ReportData) -> Iterator[Block | None]:
    """How often answers of each probability are right, and from which one on nearly all are."""
    pairs = _sure_and_right(report_data)
    if not pairs:
        return
    errors = [*(calibration_error(*pair) for pair in pairs[:-1]), report_data.scores.get("ece")]
    titles = ("without calibration", "as the run answers")[-len(pairs) :]
    models: list[ReliabilityBins] = [
        reliability_bins(title, *pair, error)
        for title, pair, error in zip(titles, pairs, errors, strict=True)
    ]
    if can_draw():
        yield pictures.reliability_diagram(models)
    # Of several labels most probabilities are near 0, and right.
    if found := answered(report_data, report_data.evaluated):
        yield _by_probability(found.sure, found.right)
        if found.words is None:
            yield Note("training.calibrate --precision finds the probability below which to abstain.")


def _by_probability(sure: np.ndarray, right: np.ndarray) -> Table | None:
    if len(sure) < LEAST_ROWS:
        return None
    rows = []
    for least in (0.5, 0.7, 0.8, 0.9, 0.95, 0.99):
        chosen = sure >= least
        shown = score(float(right[chosen].mean())) if chosen.any() else "–"
        rows.append((f"{least:.2f}", percent(float(chosen.mean())), shown))
    return Table(
        "How many answers have at least a probability, and how many of these are right",
        ("at least", "answers", "right"),
        rows,
    )


def _sure_and_right(report_data: ReportData) -> list[tuple[np.ndarray, np.ndarray]]:
    """Probabilities and whether they came true: uncalibrated, where that can be told, and calibrated."""
    asked, undone = report_data.evaluated, report_data.calibration.inverse()
    calibrated = undone != Calibration()
    if report_data.several_labels or report_data.target == "binary":
        found = np.asarray(asked.answers, np.float64)
        if report_data.several_labels:
            true = several_labels(report_data, asked).true[:, : found.shape[1]]
        else:
            true = report_data.task.targets(asked.part, report_data.labels)[:, :1] > 0
        states = [found]
        if calibrated:
            logits = undone.apply(logit(np.clip(found, _SMALLEST, 1 - _SMALLEST)))
            states.insert(0, 1 / (1 + np.exp(-logits)))
        return [(each.ravel(), true.ravel()) for each in states]
    one = answered(report_data, asked)
    if one is None:
        return []
    states = [(one.sure, one.right)]
    if calibrated and one.words is None:
        # Softmax forgets what all logits have in common, so the logarithms serve as logits.
        logits = log_softmax(np.log(np.maximum(one.probabilities, _SMALLEST)), axis=1)
        before = softmax(undone.apply(logits), axis=1)
        states.insert(0, (before[np.arange(len(before)), one.given], one.right))
    return states
