"""How well a matcher, or its baseline, scores the rows of a part."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from training.baselines.pairs import LINEAR, fit_pair_baseline
from training.data.split import random_folds
from training.metrics.bootstrap import ResampledScores, single_label_resampled
from training.metrics.classification import single_label_prediction_scores
from training.metrics.pairs import (
    binary_pair_resampled,
    binary_pair_scores,
    graded_resampled,
    graded_scores,
    ranking_resampled,
    ranking_scores,
)
from training.metrics.thresholds import best_threshold, steady_threshold
from training.tasks.protocol import Baseline, intervals_of

# Of the pairs, to choose a baseline without validation pairs.
FOLDS = 3
_OF_PROBABILITIES = ("ece", "loss", "mse", "mae", "threshold")


def pair_scores(
    targets: np.ndarray, found: np.ndarray, threshold: float | None, rankings: bool
) -> dict[str, Any]:
    """Scores of one number a row, float [R], with targets float [R, 2]: the value and the number of the query.

    A pair matches from the threshold on; None: the values are graded. `rankings`: the queries are real ones, whose
    rankings count.
    """
    values, queries = targets[:, 0], targets[:, 1].astype(np.int64)
    if threshold is None:
        result = graded_scores(values, found)
    else:
        result = binary_pair_scores(values.astype(np.int64), found, threshold)
    return {**result, **ranking_scores(values, found, queries)} if rankings else result


def pair_resampled(
    targets: np.ndarray, found: np.ndarray, threshold: float | None, rankings: bool
) -> tuple[ResampledScores, ...]:
    """The resampled rows and, with `rankings`, queries; for the arguments see `pair_scores`."""
    values, queries = targets[:, 0], targets[:, 1].astype(np.int64)
    if threshold is None:
        rows = graded_resampled(values, found)
    else:
        rows = binary_pair_resampled(values.astype(np.int64), found, threshold)
    return (rows, ranking_resampled(values, found, queries)) if rankings else (rows,)


class Pairs(NamedTuple):
    """R labeled pairs of texts."""

    texts_a: list[str]
    texts_b: list[str]
    targets: np.ndarray  # float [R, 2]: the value and the number of the query
    has_queries: bool  # the queries have names, so that rankings are scored


def class_baseline(
    train: Pairs, evaluated: Pairs, true: np.ndarray, names: Sequence[str], num_classes: int, seed: int
) -> Baseline:
    """The linear baseline for pairs with class ids, integers [R]; the names end with those that the model lacks."""
    fitted = fit_pair_baseline(train.texts_a, train.texts_b, train.targets[:, 0], target="classes", seed=seed)
    predicted = fitted.scores(evaluated.texts_a, evaluated.texts_b)[LINEAR]
    scores = single_label_prediction_scores(true, predicted, names, num_classes=num_classes)
    resampled = (single_label_resampled(true, predicted),)
    return Baseline(fitted.description, {**scores, "intervals": intervals_of(resampled)}, resampled)


def best_baseline(
    train: Pairs,
    validation: Pairs,
    evaluated: Pairs,
    target: Literal["binary", "graded"],
    metric: str,
    seed: int,
) -> Baseline:
    """The baseline whose metric is highest on the validation pairs, or without any in cross-validation."""
    fitted = fit_pair_baseline(train.texts_a, train.texts_b, train.targets[:, 0], target=target, seed=seed)
    found = fitted.scores(evaluated.texts_a, evaluated.texts_b)
    if len(validation.targets):
        before = fitted.scores(validation.texts_a, validation.texts_b)
    else:
        validation, before = train, _cross_validated_scores(train, target, seed)
    if target == "binary":
        # BM25 has no upper bound; the thresholds expect numbers in [0, 1].
        found, before = (
            {name: each if name == LINEAR else _as_shares(each) for name, each in given.items()}
            for given in (found, before)
        )
    results: dict[str, dict[str, Any]] = {}
    thresholds: dict[str, float | None] = {}
    on_validation: dict[str, float] = {}
    for name in found:
        # Only the linear model gives probabilities, for which the middle is a sensible threshold.
        find = steady_threshold if name == LINEAR else best_threshold
        threshold = find(validation.targets[:, 0] > 0, before[name]) if target == "binary" else None
        scored = pair_scores(validation.targets, before[name], threshold, validation.has_queries)
        on_validation[name] = -np.inf if scored[metric] is None else scored[metric]
        results[name] = pair_scores(evaluated.targets, found[name], threshold, evaluated.has_queries)
        thresholds[name] = threshold
    best = max(on_validation, key=lambda name: on_validation[name])
    shown = {name: value for name, value in results[best].items() if name not in _OF_PROBABILITIES}
    resampled = pair_resampled(evaluated.targets, found[best], thresholds[best], evaluated.has_queries)
    others = {name: {metric: result[metric]} for name, result in results.items()}
    return Baseline(
        fitted.description if best == LINEAR else best,
        {**shown, "intervals": intervals_of(resampled), "baselines": others},
        resampled,
    )


def _cross_validated_scores(
    pairs: Pairs, target: Literal["binary", "graded"], seed: int
) -> dict[str, np.ndarray]:
    """The scores of each pair by baselines that were fitted without its query, float64 [R] each."""
    queries = pairs.targets[:, 1]
    groups = np.arange(len(queries)) if (queries == queries[0]).all() else queries
    folds = random_folds(groups, FOLDS, [seed, 29])
    result: dict[str, np.ndarray] = {}
    for fold in np.unique(folds):
        trained, held_out = (
            (
                [pairs.texts_a[row] for row in rows],
                [pairs.texts_b[row] for row in rows],
                pairs.targets[rows, 0],
            )
            for rows in (np.flatnonzero(folds != fold), np.flatnonzero(folds == fold))
        )
        fitted = fit_pair_baseline(*trained, target=target, seed=seed)
        for name, found in fitted.scores(*held_out[:2]).items():
            result.setdefault(name, np.zeros(len(folds)))[folds == fold] = found
    return result


def _as_shares(found: np.ndarray) -> np.ndarray:
    """Scores of any size as numbers in [0, 1], in the same order."""
    return (1.0 + found / (1.0 + np.abs(found))) / 2.0
