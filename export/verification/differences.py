"""Differences between the predictions of an exported model and its bundle, and their limits."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from export.checks.exportable import CheckError

MOST_DIFFERENCE = {"none": 1e-4, "float16": 2e-3}
LEAST_AGREEMENT = 0.99
MOST_LOSS = 0.005
# Quantized weights change the numbers, but vectors must stay near; the same limit as for labels.
LEAST_COSINE = 0.99
TOLERANCE = 1e-4
# Lower limit of probabilities before the logarithm.
LEAST = 1e-30
# Names of vectors of the first text of a pair; see `export.predictors.artifacts.Predictor.vectors`.
_OF_FIRST = ("vectors_a", "embed_query")


@dataclass(frozen=True)
class Differences:
    """The differences of predictions."""

    # Of any probability; of graded scores, which have no bound, relative to max(1, |score|). NaN if not all are finite.
    max_difference: float
    worst_row: int
    # Share of the real rows with the same label, of binary pairs with the same decision, of words with the same tag;
    # with several labels the share of equal decisions, one for each label and row. None for graded scores.
    label_agreement: float | None
    # With several labels, share of the real rows with the same set of labels.
    set_agreement: float | None
    # Rows, or words, with a NaN or infinite probability.
    not_finite: int
    # Sentences whose path of tags is not the bundle's and scores less; None unless words are tagged.
    other_paths: int | None = None


def differences(
    expected: np.ndarray, found: np.ndarray, real: int, thresholds: list[float] | None, graded: bool = False
) -> Differences:
    """Compares probabilities, or graded scores, float32 [R, C].

    The real rows come first; only they count for the agreement of labels. With several labels or binary pairs there
    is a decision threshold for each; None: the best label.
    """
    scale = np.maximum(1.0, np.abs(expected)) if graded else 1.0
    by_row = (np.abs(found.astype(np.float64) - expected) / scale).max(axis=1)
    broken = (~np.isfinite(found)).any(axis=1)
    same = np.equal(_decisions(expected, thresholds), _decisions(found, thresholds)) & np.isfinite(found).all(
        axis=1, keepdims=True
    )
    several = thresholds is not None and len(thresholds) > 1
    return Differences(
        max_difference=float("nan") if broken.any() else float(by_row.max()),
        worst_row=int(np.argmax(np.where(broken, np.inf, by_row))),
        label_agreement=None if graded else float(same[:real].mean()),
        set_agreement=float(same[:real].all(axis=1).mean()) if several else None,
        not_finite=int(broken.sum()),
    )


def _decisions(probabilities: np.ndarray, thresholds: list[float] | None) -> np.ndarray:
    if thresholds is None:
        return probabilities.argmax(axis=1)[:, None]
    return probabilities >= np.asarray(thresholds, np.float32)


def failures(
    quantization: str, found: Differences, change: float | None, other_tokens: int | None, labels: bool
) -> list[str]:
    """The reasons why an exported model fails, a line each; empty if it passes.

    `change` is that of the metric from the bundle's, None where it is not defined; `other_tokens` counts rows with
    other token ids than the bundle's, None where ids are not available; `labels`: its label names are the bundle's.
    """
    reasons = []
    if found.not_finite:
        rows = "rows" if found.other_paths is None else "words"
        reasons.append(f"{found.not_finite} {rows} have NaN or infinite predictions")
    if not labels:
        reasons.append("its label names are not the bundle's")
    if other_tokens:
        reasons.append(f"{other_tokens} rows have other token ids")
    most, graded = MOST_DIFFERENCE.get(quantization), found.label_agreement is None
    if most is not None and found.max_difference > most:
        what = "a score differs, relative to max(1, |score|)," if graded else "a probability differs"
        reasons.append(f"{what} by {found.max_difference:.1e}, more than {most:.0e}")
    if quantization == "none" and found.other_paths:
        reasons.append(f"{found.other_paths} sentences have other tags with a lower score")
    agreement = 1.0 if found.label_agreement is None else found.label_agreement
    if quantization == "dynamic" and agreement < LEAST_AGREEMENT:
        reasons.append(f"only {agreement:.4f} of the labels are the same, less than {LEAST_AGREEMENT}")
    # A row has few of many labels, so a model that predicts none would agree on most. Graded scores have no labels.
    by_metric = quantization == "int8" or (
        quantization == "dynamic" and (graded or found.set_agreement is not None)
    )
    if by_metric and change is not None and abs(change) > MOST_LOSS:
        reasons.append(f"the metric changes by {change:+.4f}, more than {MOST_LOSS}")
    if by_metric and change is None and not found.not_finite:
        reasons.append("the metric, which decides, is not defined for these rows")
    return reasons


def as_json(found: Differences) -> dict[str, Any]:
    """The differences as JSON values; None for NaN."""
    finite = np.isfinite(found.max_difference)
    paths = {} if found.other_paths is None else {"sentences_with_other_paths": found.other_paths}
    return {
        "max_difference": found.max_difference if finite else None,
        "label_agreement": found.label_agreement,
        "set_agreement": found.set_agreement,
        "rows_not_finite": found.not_finite,
        **paths,
    }


@dataclass(frozen=True)
class VectorDifferences:
    """The differences of text vectors."""

    # None where a number is not finite.
    max_difference: float | None
    # Of the real rows' vectors with the bundle's; the least one is of all rows.
    mean_cosine: float
    least_cosine: float
    worst_row: int
    # Rows with a NaN or infinite number.
    not_finite: int


def text_number(name: str, num_texts: int) -> int:
    """The number of the text, from 0, that the vectors of that name belong to."""
    return 0 if name in _OF_FIRST else num_texts - 1


def vector_differences(expected: np.ndarray, found: np.ndarray, real: int) -> VectorDifferences:
    """Compares vectors float32 [R, D]; the expected ones have length 1. The real rows come first."""
    finite = np.all(np.isfinite(found), axis=1)
    vectors = np.where(finite[:, None], found, 0.0).astype(np.float64)
    cosines = (vectors * expected).sum(axis=1) / np.maximum(np.linalg.norm(vectors, axis=1), 1e-12)
    # Zeros have no direction, but two zero vectors are equal.
    cosines = np.where(np.all(np.equal(vectors, expected), axis=1) & finite, 1.0, cosines)
    return VectorDifferences(
        max_difference=float(np.abs(vectors - expected).max(initial=0.0)) if finite.all() else None,
        mean_cosine=float(cosines[:real].mean()),
        least_cosine=float(cosines.min()),
        worst_row=int(cosines.argmin()),
        not_finite=int((~finite).sum()),
    )


def vector_failures(quantization: str, name: str, found: VectorDifferences) -> list[str]:
    """The reasons why the vectors of that name fail, a line each; empty if they pass."""
    if found.max_difference is None:
        return [f"{name}: {found.not_finite} vectors have NaN or infinite numbers"]
    most = MOST_DIFFERENCE.get(quantization)
    if most is not None and found.max_difference > most:
        return [f"{name}: a vector differs by {found.max_difference:.1e}, more than {most:.0e}"]
    if most is None and found.mean_cosine < LEAST_COSINE:
        mean = f"{found.mean_cosine:.4f}"
        return [f"{name}: the mean cosine with the run's vectors is {mean}, less than {LEAST_COSINE}"]
    return []


def tag_difference(
    found: Mapping[str, np.ndarray],
    expected: Mapping[str, np.ndarray],
    word_mask: np.ndarray,
    exact: bool,
    place: str = "",
) -> float:
    """The largest difference of a tag's probability in windows, by the names of `export.graph.model_function`.

    Outputs are [V, W, …], word masks int32 [V, W]; 1 = to be tagged. `exact` ones must be equal within 1e-4
    (float32); `place` is a prefix of messages. Raises CheckError if an output is NaN or infinite, or they differ;
    different tags count only if they are less probable.
    """
    for name, values in found.items():
        if not np.isfinite(values).all():
            raise CheckError(
                f"{place}expected finite numbers, got {values[~np.isfinite(values)][0]} in {name}"
            )
    tagged = word_mask > 0
    differences = np.abs(found["probabilities"] - expected["probabilities"])[tagged]
    largest = float(differences.max(initial=0.0))
    if not exact:
        return largest
    # Two paths may be equally probable, so the tags themselves may differ.
    paths = np.abs(_path_logs(found, tagged) - _path_logs(expected, tagged))
    worst = max(largest, float(paths.max(initial=0.0)))
    if worst > TOLERANCE:
        raise CheckError(
            f"{place}expected the run's tags within {TOLERANCE:g}, got a difference of {worst:.2g}"
        )
    return largest


def _path_logs(outputs: Mapping[str, np.ndarray], tagged: np.ndarray) -> np.ndarray:
    """The mean log probability of a word of each window's path, [V]."""
    logs = np.log(np.maximum(outputs["path_probabilities"], LEAST))
    return (logs * tagged).sum(axis=1) / np.maximum(tagged.sum(axis=1), 1)
