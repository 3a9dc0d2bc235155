"""Paired comparisons of two models that predicted the same rows."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import binomtest

from training.metrics.bootstrap import ResampledScores, Resampling, percentile_interval, resample_weights

RESAMPLES = 2000
NO_DIFFERENCE = "no difference shown"
BASELINE_WINS = "baseline wins"
COMPARISON = "comparison"  # key of the compared scores in metrics.json
LOWER_IS_BETTER = frozenset({"ece", "loss", "mse", "mae", "perplexity"})
# Of five rows that differ, all five favor one side by chance too often: two-sided sign test, p = .0625.
_FEWEST_ROWS = 6
# The score that weighs all labels equally, and what it is the mean of.
_MACRO = "macro_f1"


def compare_resampled(
    model: Sequence[ResampledScores],
    other: Sequence[ResampledScores],
    name: str = "baseline",
    model_name: str = "model",
    seed: int = 0,
) -> dict[str, dict[str, Any]]:
    """Compares the scores of two models by the paired bootstrap: both are scored on the same resamples of the rows.

    A model wins if the 95 % interval of the difference excludes 0, at least six rows differ, and for the accuracy of
    rows the exact McNemar test has p < .05.

    Args:
        model: The scores of a model, one object for each kind of row.
        other: Those of the other model, for the same rows.
        name: The other model, in verdicts.
        model_name: The model, in verdicts.
        seed: Seed of the resamples.

    Returns:
        JSON values by score: "difference" (model minus other), "interval", "verdict" ("model wins", "baseline wins" or
        "no difference shown"); of the accuracy "mcnemar": "only_model" and "only_other" (rows that only one has right)
        and "p".
    """
    found: dict[str, dict[str, Any]] = {}
    for one, two in zip(model, other, strict=True):
        if not len(one.rows):
            continue
        for score, (difference, interval) in _differences(one, two, Resampling(seed, RESAMPLES)).items():
            result: dict[str, Any] = {"difference": difference, "interval": interval}
            is_shown = not interval[0] <= 0 <= interval[1] and _differing_rows(one, two) >= _FEWEST_ROWS
            if score == "accuracy" and one.correct is not None and two.correct is not None:
                result["mcnemar"] = mcnemar(one.correct, two.correct)
                is_shown &= result["mcnemar"]["p"] < 0.05
            winner = model_name if (difference > 0) != (score in LOWER_IS_BETTER) else name
            found[score] = {**result, "verdict": f"{winner} wins" if is_shown else NO_DIFFERENCE}
    return found


def with_comparison(
    scores: Mapping[str, Any],
    resampled: Sequence[ResampledScores],
    other_scores: Mapping[str, Any],
    other_resampled: Sequence[ResampledScores],
    name: str = "baseline",
) -> dict[str, Any]:
    """The scores of another model, with the "comparison" of the model's scores with them; see `compare_resampled`."""
    found = compare_resampled(resampled, other_resampled, name)
    both = {score: each for score, each in found.items() if {score} <= scores.keys() & other_scores.keys()}
    return {**other_scores, COMPARISON: both}


def mcnemar(correct: np.ndarray, other: np.ndarray) -> dict[str, Any]:
    """The exact McNemar test of two accuracies of the same rows, bool [R]: "only_model", "only_other" and "p".

    Source: McNemar 1947, "Note on the sampling error of the difference between correlated proportions or percentages".
    """
    only_model, only_other = int((correct & ~other).sum()), int((other & ~correct).sum())
    total = only_model + only_other
    p = float(binomtest(only_model, total).pvalue) if total else 1.0
    return {"only_model": only_model, "only_other": only_other, "p": p}


def _differences(
    one: ResampledScores, two: ResampledScores, resampling: Resampling
) -> dict[str, tuple[float, list[float]]]:
    """Difference and interval of each score that both define."""
    both = np.concatenate([one.rows, two.rows], axis=1)
    _, first, sizes = np.unique(both, axis=0, return_index=True, return_counts=True)
    statistics = [each.statistics(each.rows[first]) for each in (one, two)]

    def differences(weights: np.ndarray) -> dict[str, np.ndarray]:
        left, right = (each(weights) for each in statistics)
        return {score: left[score] - right[score] for score in left.keys() & right.keys()}

    whole = differences(sizes[None].astype(np.float64))
    chunks = [differences(weights) for weights in resample_weights(sizes, resampling)]
    found = {}
    for score in sorted(whole):
        values = np.concatenate([chunk[score] for chunk in chunks])
        values = values[~np.isnan(values)]
        if len(values) and not np.isnan(whole[score][0]):
            found[score] = float(whole[score][0]), list(percentile_interval(values, resampling.level))
    return found


def _differing_rows(one: ResampledScores, two: ResampledScores) -> int:
    """The number of rows that the two models predict differently."""
    if one.rows.shape != two.rows.shape:
        return len(one.rows)
    return int((one.rows != two.rows).any(axis=1).sum())


def describe_comparison(
    scores: Mapping[str, Any], other_scores: Mapping[str, Any], metric: str, name: str = "linear baseline"
) -> list[str]:
    """Sentences without a full stop that compare a model's scores with another's, whose "comparison" has the verdicts.

    For example "accuracy: baseline wins, model 0.9547, linear baseline 0.9625, difference -0.0078 (-0.0144 to -0.0011),
    McNemar p 0.034". A second sentence has the macro F1 if its verdict is another one.
    """
    found = other_scores.get(COMPARISON, {})
    sentences = [_sentence(scores, other_scores, metric, name)]
    if metric in found and found.get(_MACRO, found[metric])["verdict"] != found[metric]["verdict"]:
        contrast = _sentence(scores, other_scores, _MACRO, name)
        sentences.append(f"{contrast}; macro_f1 weighs rare labels as much as frequent ones")
    return sentences


def verdict_of(other_scores: Mapping[str, Any], metric: str) -> str:
    """The verdict of a metric; empty if it was not compared."""
    return other_scores.get(COMPARISON, {}).get(metric, {}).get("verdict", "")


def _sentence(scores: Mapping[str, Any], other_scores: Mapping[str, Any], metric: str, name: str) -> str:
    values = f"model {_figure(scores.get(metric))}, {name} {_figure(other_scores.get(metric))}"
    found = other_scores.get(COMPARISON, {}).get(metric)
    if found is None:
        undefined = scores.get(metric) is None or other_scores.get(metric) is None
        return f"{metric}: {'cannot be compared' if undefined else 'not compared on the same rows'}, {values}"
    sentence = f"{metric}: {found['verdict']}, {values}, difference {format_difference(found)}"
    return f"{sentence}, McNemar p {found['mcnemar']['p']:.2g}" if "mcnemar" in found else sentence


def format_difference(found: Mapping[str, Any]) -> str:
    """A difference with its interval: "-0.0078 (-0.0144 to -0.0011)"."""
    low, high = found["interval"]
    return f"{found['difference']:+.4f} ({low:+.4f} to {high:+.4f})"


def _figure(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.4f}"
