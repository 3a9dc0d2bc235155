"""How well a matcher, or its baseline, scores the rows of a part."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from training.baselines.pairs import LINEAR, fit_pair_baseline
from training.io.example_store import label_ids
from training.metrics import bootstrap as label_intervals
from training.metrics import classification as scores
from training.metrics import pair_intervals
from training.metrics.pairs import binary_pair_scores, graded_scores
from training.metrics.ranking import ranking_scores
from training.metrics.thresholds import best_threshold, steady_threshold
from training.tasks.protocol import Part

if TYPE_CHECKING:
    from training.tasks.match.task import MatchTask

_OF_PROBABILITIES = ("ece", "loss", "mse", "mae", "threshold")


def pair_scores(
    task: "MatchTask",
    part: Part,
    labels: Sequence[str],
    probabilities: np.ndarray,
    decision: dict[str, Any],
    intervals: bool,
) -> dict[str, Any]:
    """Scores of probabilities [R, C]; see `MatchTask.scores`."""
    if task.target == "classes":
        true, names = label_ids(part.examples, part.rows, labels)
        result = scores.single_label_scores(true, probabilities, names)
        answers = probabilities.argmax(axis=1)
        return result | _if_asked(intervals, lambda: label_intervals.single_label_intervals(true, answers))
    targets, found = task.targets(part, labels), probabilities[:, 0]
    threshold = float(decision["thresholds"][0]) if task.target == "binary" else None
    return score_scores(targets, found, threshold, part.examples.named_queries, intervals)


def score_scores(
    targets: np.ndarray, found: np.ndarray, threshold: float | None, rankings: bool, intervals: bool
) -> dict[str, Any]:
    """Scores of one number a row.

    Args:
        targets: float [R, 2]: the wanted value and the number of the query.
        found: float [R].
        threshold: From which number a pair matches; None: the values are graded.
        rankings: Whether the queries are real ones, whose rankings count.
        intervals: Whether to add bootstrap intervals.
    """
    values, queries = targets[:, 0], targets[:, 1].astype(np.int64)
    if threshold is None:
        result = graded_scores(values, found)
    else:
        result = binary_pair_scores(values.astype(np.int64), found, threshold)
    if rankings:
        result |= ranking_scores(values, found, queries)
    if not intervals:
        return result
    if threshold is None:
        ends = pair_intervals.graded_intervals(values, found)
    else:
        ends = pair_intervals.binary_pair_intervals(values.astype(np.int64), found, threshold)
    if rankings:
        ends |= pair_intervals.ranking_intervals(values, found, queries)
    return {**result, "intervals": {name: list(pair) for name, pair in ends.items()}}


def _if_asked(asked: bool, make: Any) -> dict[str, Any]:
    return {"intervals": {name: list(pair) for name, pair in make().items()}} if asked else {}


def baseline_scores(
    task: "MatchTask", train: Part, validation: Part, evaluated: Part, labels: Sequence[str], seed: int
) -> tuple[str, dict[str, Any]]:
    """The description and scores of the baseline that is best on validation rows; see `MatchTask.baseline`."""
    fitted = fit_pair_baseline(
        *_texts(train),
        task.targets(train, labels)[:, 0],
        target=task.target,  # pyright: ignore  (settled by now)
        seed=seed,
    )
    found = fitted.scores(*_texts(evaluated))
    if task.target == "classes":
        true, names = label_ids(evaluated.examples, evaluated.rows, labels)
        answers = found[LINEAR]
        result = scores.single_label_answer_scores(true, answers, names, num_classes=len(labels))
        ends = label_intervals.single_label_intervals(true, answers)
        return fitted.description, {**result, "intervals": {name: list(pair) for name, pair in ends.items()}}
    before = fitted.scores(*_texts(validation))
    if task.target == "binary":
        # What counts of a score is where it stands among others; BM25 has no largest one.
        found, before = (
            {name: each if name == LINEAR else _as_shares(each) for name, each in given.items()}
            for given in (found, before)
        )
    expected, targets = task.targets(evaluated, labels), task.targets(validation, labels)
    results: dict[str, dict[str, Any]] = {}
    on_validation: dict[str, float] = {}
    for name in found:
        # Of the three only the linear model's score is a probability, which has a middle.
        threshold = steady_threshold if name == LINEAR else best_threshold
        cut = threshold(targets[:, 0] > 0, before[name]) if task.target == "binary" else None
        rankings = validation.examples.named_queries
        value = score_scores(targets, before[name], cut, rankings, intervals=False)[task.metric]
        on_validation[name] = -np.inf if value is None else value
        results[name] = score_scores(
            expected, found[name], cut, evaluated.examples.named_queries, intervals=True
        )
    best = max(on_validation, key=lambda name: on_validation[name])
    described = fitted.description if best == LINEAR else best
    others = {name: {task.metric: result[task.metric]} for name, result in results.items()}
    kept = {name: value for name, value in results[best].items() if name not in _OF_PROBABILITIES}
    return described, {**kept, "baselines": others}


def _as_shares(found: np.ndarray) -> np.ndarray:
    """Scores of any size as numbers in [0, 1], in the same order."""
    return (1.0 + found / (1.0 + np.abs(found))) / 2.0


def _texts(part: Part) -> tuple[list[str], list[str]]:
    return part.texts(0), part.texts(1)
