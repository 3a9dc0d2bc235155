"""How far the predictions of an exported model may differ from the run's: one rule for exports and `export.verify`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

# Largest differences of correct exports of trained runs: float32 4e-6, float16 2.6e-3.
MOST_DIFFERENCE = {"none": 1e-4, "float16": 5e-3}
# Of 8-bit weights: the share of equal labels, the change of the metric, and the share of rows whose largest difference
# of a probability is more than OFF. A label that the run prefers by less than OFF is a near tie, which allowed
# differences decide.
LEAST_AGREEMENT = 0.99
MOST_LOSS = 0.005
OFF, MOST_OFF = 0.05, 0.01
# Largest 99.9th percentile of the rows' largest differences of a probability with 8-bit weights.
MOST_P999 = 0.25
# Quantized weights change the numbers, but vectors must stay near; the same limit as for labels.
LEAST_COSINE = 0.99
MOST_OF_VECTORS = {"none": 1e-4, "float16": 2e-3}
# Names of vectors of the first text of a pair; see `export.predictors.artifacts.Predictor.vectors`.
_OF_FIRST = ("vectors_a", "embed_query")


@dataclass(frozen=True)
class Differences:
    """The differences of predictions."""

    # Of any probability; of graded scores, which have no bound, relative to max(1, |score|). NaN if not all are finite.
    max_difference: float
    worst_row: int
    # Of the compared rows, or words: the 99.9th percentile of their largest differences, NaN if not all are finite, and
    # the share of them whose largest difference is more than OFF. Edge cases do not count.
    p999_difference: float
    share_off: float
    # Share of the compared rows with the same label, of binary pairs with the same decision, of words with the same
    # tag; with several labels the share of equal decisions, one for each label and row. None for graded scores.
    label_agreement: float | None
    # With several labels, share of the compared rows with the same set of labels.
    set_agreement: float | None
    # Rows, or words, with a NaN or infinite probability.
    not_finite: int
    # Sentences whose path of tags is not the bundle's and scores less; None unless words are tagged.
    other_paths: int | None = None
    # Share of the compared rows or decisions that differ, but are near ties in the bundle; 0 for words.
    near_ties: float = 0.0


def differences(
    expected: np.ndarray,
    found: np.ndarray,
    compared: int,
    thresholds: list[float] | None,
    graded: bool = False,
) -> Differences:
    """Compares probabilities, or graded scores, float32 [R, C].

    The compared rows come first, then edge cases. With several labels or binary pairs there is a decision threshold for
    each; None: the best label.
    """
    scale = np.maximum(1.0, np.abs(expected)) if graded else 1.0
    by_row = (np.abs(found.astype(np.float64) - expected) / scale).max(axis=1)
    finite = np.isfinite(found).all(axis=1, keepdims=True)
    same = np.equal(_decisions(expected, thresholds), _decisions(found, thresholds)) & finite
    several = thresholds is not None and len(thresholds) > 1
    ties = ~same & (_margins(expected, thresholds) < OFF) & finite
    return Differences(
        **row_differences(by_row, compared),
        label_agreement=None if graded else float(same[:compared].mean()),
        set_agreement=float(same[:compared].all(axis=1).mean()) if several else None,
        near_ties=0.0 if graded else float(ties[:compared].mean()),
    )


def row_differences(by_row: np.ndarray, compared: int) -> dict[str, Any]:
    """The fields of `Differences` that follow from the largest difference of each row or word, float64 [R].

    The compared ones come first; one with a NaN or infinite prediction is not finite.
    """
    finite, first = np.isfinite(by_row), by_row[:compared]
    return {
        "max_difference": float(by_row.max(initial=0.0)) if finite.all() else float("nan"),
        "worst_row": int(np.argmax(np.where(finite, by_row, np.inf))) if len(by_row) else 0,
        "p999_difference": float(np.quantile(first, 0.999) if len(first) else 0.0)
        if finite.all()
        else float("nan"),
        "share_off": float((~(first <= OFF)).mean()) if len(first) else 0.0,
        "not_finite": int((~finite).sum()),
    }


def _decisions(probabilities: np.ndarray, thresholds: list[float] | None) -> np.ndarray:
    if thresholds is None:
        return probabilities.argmax(axis=1)[:, None]
    return probabilities >= np.asarray(thresholds, np.float32)


def _margins(probabilities: np.ndarray, thresholds: list[float] | None) -> np.ndarray:
    """By how much each decision is preferred: over the second label, or twice the distance from the threshold."""
    if thresholds is not None:
        return 2 * np.abs(probabilities - np.asarray(thresholds, np.float32))
    best = np.sort(probabilities, axis=1)[:, -2:]
    return best[:, -1:] - best[:, :1] if probabilities.shape[1] > 1 else np.ones_like(best)


def failures(
    quantization: str,
    found: Differences,
    change: float | None,
    other_tokens: int | None,
    labels: bool,
    labeled=True,
) -> list[str]:
    """The reasons why an exported model fails, a line each; empty if it passes.

    `change` is that of the metric from the bundle's, None where it is not defined; `other_tokens` counts rows with
    other token ids than the bundle's, None where ids are not available; `labels`: its label names are the bundle's.
    Rows that are not `labeled` have no metric.
    """
    reasons = []
    rows = "rows" if found.other_paths is None else "words"
    if found.not_finite:
        reasons.append(f"expected finite predictions, got NaN or infinity for {found.not_finite} {rows}")
    if not labels:
        reasons.append("expected the label names of the run, got others")
    if other_tokens:
        reasons.append(f"expected the token ids of the run, got others for {other_tokens} rows")
    most, graded = MOST_DIFFERENCE.get(quantization), found.label_agreement is None
    if most is not None:
        if found.max_difference > most:
            what = "scores relative to max(1, |score|)" if graded else "probabilities"
            reasons.append(
                f"expected {what} within {most:.0e}, got a difference of {found.max_difference:.1e}"
            )
        if quantization == "none" and found.other_paths:
            reasons.append(
                f"expected the best tags, got tags with a lower score for {found.other_paths} sentences"
            )
        return reasons
    if found.label_agreement is not None and found.label_agreement + found.near_ties < LEAST_AGREEMENT:
        got = f"got {found.label_agreement:.4f} and {found.near_ties:.4f} near ties"
        reasons.append(f"expected at least {LEAST_AGREEMENT} equal labels, {got}")
    if found.share_off > MOST_OFF:
        got = f"got {found.share_off:.4f} of the {rows}"
        reasons.append(f"expected at most {MOST_OFF} with a probability off by more than {OFF}, {got}")
    if found.p999_difference > MOST_P999:
        got = f"got {found.p999_difference:.2f}"
        reasons.append(f"expected a 99.9th percentile of differences of at most {MOST_P999}, {got}")
    # A row has few of many labels, so a model that predicts none would agree on most. Graded scores have no labels.
    by_metric = labeled and (quantization == "int8" or graded or found.set_agreement is not None)
    if by_metric and change is not None and abs(change) > MOST_LOSS:
        reasons.append(f"expected the metric within {MOST_LOSS}, got a change of {change:+.4f}")
    if by_metric and change is None and not found.not_finite:
        reasons.append("expected rows for which the metric is defined, got others")
    return reasons


def as_json(found: Differences) -> dict[str, Any]:
    """The differences as JSON values; None for NaN."""
    paths = {} if found.other_paths is None else {"sentences_with_other_paths": found.other_paths}
    return {
        "max_difference": found.max_difference if np.isfinite(found.max_difference) else None,
        "p999_difference": found.p999_difference if np.isfinite(found.p999_difference) else None,
        "share_off": found.share_off,
        "label_agreement": found.label_agreement,
        "near_ties": found.near_ties,
        "set_agreement": found.set_agreement,
        "rows_not_finite": found.not_finite,
        **paths,
    }


@dataclass(frozen=True)
class VectorDifferences:
    """The differences of text vectors."""

    # None where a number is not finite.
    max_difference: float | None
    # Of the compared rows' vectors with the bundle's; the least one is of all rows.
    mean_cosine: float
    least_cosine: float
    worst_row: int
    # Rows with a NaN or infinite number.
    not_finite: int


def text_number(name: str, num_texts: int) -> int:
    """The number of the text, from 0, that the vectors of that name belong to."""
    return 0 if name in _OF_FIRST else num_texts - 1


def vector_differences(expected: np.ndarray, found: np.ndarray, compared: int) -> VectorDifferences:
    """Compares vectors float32 [R, D]; the expected ones have length 1. The compared rows come first."""
    finite = np.all(np.isfinite(found), axis=1)
    vectors = np.where(finite[:, None], found, 0.0).astype(np.float64)
    cosines = (vectors * expected).sum(axis=1) / np.maximum(np.linalg.norm(vectors, axis=1), 1e-12)
    # Zeros have no direction, but two zero vectors are equal.
    cosines = np.where(np.all(np.equal(vectors, expected), axis=1) & finite, 1.0, cosines)
    return VectorDifferences(
        max_difference=float(np.abs(vectors - expected).max(initial=0.0)) if finite.all() else None,
        mean_cosine=float(cosines[:compared].mean()),
        least_cosine=float(cosines.min()),
        worst_row=int(cosines.argmin()),
        not_finite=int((~finite).sum()),
    )


def vector_failures(quantization: str, name: str, found: VectorDifferences) -> list[str]:
    """The reasons why the vectors of that name fail, a line each; empty if they pass."""
    if found.max_difference is None:
        return [f"{name}: expected finite numbers, got NaN or infinity in {found.not_finite} vectors"]
    most = MOST_OF_VECTORS.get(quantization)
    if most is not None and found.max_difference > most:
        return [f"{name}: expected numbers within {most:.0e}, got a difference of {found.max_difference:.1e}"]
    if most is None and found.mean_cosine < LEAST_COSINE:
        return [f"{name}: expected a mean cosine of at least {LEAST_COSINE}, got {found.mean_cosine:.4f}"]
    return []


# Largest relative error at which a tensor counts as the layer. Largest errors of correct exports of trained runs:
# float32 7e-7, float16 3e-4.
LAYER_TOLERANCES = {"none": 2e-5, "float16": 5e-3}
# Quantization to 8 bits explains an error of one layer up to the first number, and up to GROWTH times the largest error
# of the layers before. Correct exports: .02 with float32 activations, .08 with all values in 8 bits, growth up to 2.3.
LAYER_ROUNDING = {"dynamic": 0.02, "int8": 0.1}
GROWTH = 3.0


def first_divergent(errors: Mapping[str, float | None], quantization: str) -> str | None:
    """The first layer without a near tensor; the errors are those of `nearest_errors`.

    Of 8-bit weights it is the first layer whose error quantization does not explain, else the one that exceeds most of
    what is explained. None if all layers of a float model are near.
    """
    ratios, before = {}, 0.0
    for name, error in errors.items():
        explained = LAYER_TOLERANCES.get(quantization) or max(LAYER_ROUNDING[quantization], GROWTH * before)
        ratios[name] = float("inf") if error is None else error / explained
        before = max(before, error or 0.0)
    first = next((name for name, ratio in ratios.items() if ratio > 1), None)
    if first is None and quantization in LAYER_ROUNDING:
        return max(ratios, key=ratios.__getitem__, default=None)
    return first
