"""How far a copy's answers are from the bundle's, and whether that is near enough."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from export.checks.exportable import CheckError

MOST_DIFFERENCE = {"none": 1e-4, "float16": 2e-3}
LEAST_AGREEMENT = 0.99
MOST_LOSS = 0.005


@dataclass(frozen=True)
class Differences:
    """Numbers of a comparison.

    Attributes:
        max_difference: Largest of any probability; of graded scores, which have no bound, relative to max(1, |score|).
            NaN where one is not finite.
        worst_row: Where it is.
        label_agreement: Share of the real rows with the same label, of binary pairs with the same decision, of words
            with the same tag; with several labels, share of the decisions, one a label and row, that are the same. None
            of graded scores.
        set_agreement: With several labels, share of the real rows with the same set; else None.
        not_finite: Rows, or words, with a probability that is no finite number.
        other_paths: Sentences whose tags are others than the bundle's although no other path is as good; None where
            words are not tagged.
    """

    max_difference: float
    worst_row: int
    label_agreement: float | None
    set_agreement: float | None
    not_finite: int
    other_paths: int | None = None


def differences(
    expected: np.ndarray,
    found: np.ndarray,
    real: int,
    thresholds: list[float] | None,
    graded: bool = False,
) -> Differences:
    """Compares probabilities, or scores.

    Args:
        expected: The bundle's, float32 [R, C].
        found: The copy's, of the same shape.
        real: The first so many rows count for the agreement of labels.
        thresholds: With several labels or binary pairs, from which probability each is given; None: the best label.
        graded: Whether they are scores without labels.
    """
    scale = np.maximum(1.0, np.abs(expected)) if graded else 1.0
    by_row = (np.abs(found.astype(np.float64) - expected) / scale).max(axis=1)
    broken = (~np.isfinite(found)).any(axis=1)
    same = np.equal(_answers(expected, thresholds), _answers(found, thresholds)) & np.isfinite(found).all(
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


def _answers(probabilities: np.ndarray, thresholds: list[float] | None) -> np.ndarray:
    if thresholds is None:
        return probabilities.argmax(axis=1)[:, None]
    return probabilities >= np.asarray(thresholds, np.float32)


def failures(
    quantization: str, found: Differences, change: float | None, other_tokens: int | None, labels: bool
) -> list[str]:
    """Why a copy fails, a line each; none where it passes.

    Args:
        quantization: "none", "float16", "dynamic" or "int8".
        found: The differences.
        change: Of the metric against the bundle; None where it is not defined.
        other_tokens: Rows for which its tokenizer makes other ids; None: not to be seen.
        labels: Whether the names of its labels are the bundle's.
    """
    reasons = []
    if found.not_finite:
        rows = "rows" if found.other_paths is None else "words"
        reasons.append(f"{found.not_finite} {rows} answered with NaN or infinity")
    if not labels:
        reasons.append("the names of its labels are not the bundle's")
    if other_tokens:
        reasons.append(f"{other_tokens} rows have other token ids")
    most, graded = MOST_DIFFERENCE.get(quantization), found.label_agreement is None
    if most is not None and found.max_difference > most:
        what = "a score differs, relative to max(1, |score|)," if graded else "a probability differs"
        reasons.append(f"{what} by {found.max_difference:.1e}, more than {most:.0e}")
    if quantization == "none" and found.other_paths:
        reasons.append(f"{found.other_paths} sentences have other tags, which fit worse")
    agreement = 1.0 if found.label_agreement is None else found.label_agreement
    if quantization == "dynamic" and agreement < LEAST_AGREEMENT:
        reasons.append(f"only {agreement:.4f} of the labels are the same, less than {LEAST_AGREEMENT}")
    # Of many labels a row has hardly any, so that a copy that gives none would agree on most; graded scores have none.
    by_metric = quantization == "int8" or (
        quantization == "dynamic" and (graded or found.set_agreement is not None)
    )
    if by_metric and change is not None and abs(change) > MOST_LOSS:
        reasons.append(f"the metric changes by {change:+.4f}, more than {MOST_LOSS}")
    if by_metric and change is None and not found.not_finite:
        reasons.append("the metric, by which it is judged, is not defined for these rows")
    return reasons


def as_json(found: Differences) -> dict[str, Any]:
    """The numbers as JSON values: None where one is no number."""
    finite = np.isfinite(found.max_difference)
    paths = {} if found.other_paths is None else {"sentences_with_other_paths": found.other_paths}
    return {
        "max_difference": found.max_difference if finite else None,
        "label_agreement": found.label_agreement,
        "set_agreement": found.set_agreement,
        "rows_not_finite": found.not_finite,
        **paths,
    }


# Of rounded weights the numbers move, but what is near must stay near: the same share as of labels that stay.
LEAST_COSINE = 0.99
# Names by which a predictor gives vectors of the first text of a pair; see `export.predictors.protocol.Predictor.vectors`.
_OF_FIRST = ("vectors_a", "embed_query")


@dataclass(frozen=True)
class VectorDifferences:
    """Numbers of a comparison.

    Attributes:
        max_difference: Largest of any number of any vector; None where one is not finite.
        mean_cosine: Of the real rows' vectors with the bundle's.
        least_cosine: Of all rows'.
        worst_row: The row of the least.
        not_finite: Rows with a number that is not finite.
    """

    max_difference: float | None
    mean_cosine: float
    least_cosine: float
    worst_row: int
    not_finite: int


def text_number(name: str, num_texts: int) -> int:
    """Which text of a row the vectors of that name are of, from 0."""
    return 0 if name in _OF_FIRST else num_texts - 1


def vector_differences(expected: np.ndarray, found: np.ndarray, real: int) -> VectorDifferences:
    """Compares vectors.

    Args:
        expected: The bundle's, float32 [R, D], of length 1.
        found: The copy's, of the same shape.
        real: The first so many rows count for the mean.
    """
    finite = np.all(np.isfinite(found), axis=1)
    given = np.where(finite[:, None], found, 0.0).astype(np.float64)
    cosines = (given * expected).sum(axis=1) / np.maximum(np.linalg.norm(given, axis=1), 1e-12)
    # Zeros have no direction; the same zeros are the same vector.
    cosines = np.where(np.all(np.equal(given, expected), axis=1) & finite, 1.0, cosines)
    return VectorDifferences(
        max_difference=float(np.abs(given - expected).max(initial=0.0)) if finite.all() else None,
        mean_cosine=float(cosines[:real].mean()),
        least_cosine=float(cosines.min()),
        worst_row=int(cosines.argmin()),
        not_finite=int((~finite).sum()),
    )


def vector_failures(quantization: str, name: str, found: VectorDifferences) -> list[str]:
    """Why a copy's vectors fail, a line each; none where they pass.

    Args:
        quantization: "none", "float16", "dynamic" or "int8".
        name: Of the vectors.
        found: The differences.
    """
    if found.max_difference is None:
        return [f"{name}: {found.not_finite} vectors hold NaN or infinity"]
    most = MOST_DIFFERENCE.get(quantization)
    if most is not None and found.max_difference > most:
        return [f"{name}: a vector differs by {found.max_difference:.1e}, more than {most:.0e}"]
    if most is None and found.mean_cosine < LEAST_COSINE:
        return [
            f"{name}: the cosine with the run's vectors is {found.mean_cosine:.4f} on average, less than {LEAST_COSINE}"
        ]
    return []


TOLERANCE = 1e-4
# Where a probability is too small for float32 its logarithm is taken of this.
LEAST = 1e-30


def tagged_difference(
    found: Mapping[str, np.ndarray],
    expected: Mapping[str, np.ndarray],
    word_mask: np.ndarray,
    exact: bool,
    place: str = "",
) -> float:
    """Compares answers to windows, by the names of `export.graph.tagger_function`.

    Args:
        found: The file's, [V, W, …].
        expected: The run's.
        word_mask: int32 [V, W]; 1 = to be tagged.
        exact: Whether they must be the same within 1e-4 (float32).
        place: For messages.

    Returns:
        The largest difference of a tag's probability.

    Raises:
        CheckError: An answer is not a number, or they differ; where tags differ, only if they are less probable.
    """
    for name, values in found.items():
        if not np.isfinite(values).all():
            raise CheckError(f"{place}expected numbers, got {values[~np.isfinite(values)][0]} in {name}")
    tagged = word_mask > 0
    differences = np.abs(found["probabilities"] - expected["probabilities"])[tagged]
    largest = float(differences.max(initial=0.0))
    if not exact:
        return largest
    # Two paths may be as good as each other, so the tags themselves may differ.
    paths = np.abs(_path_logs(found, tagged) - _path_logs(expected, tagged))
    worst = max(largest, float(paths.max(initial=0.0)))
    if worst > TOLERANCE:
        raise CheckError(
            f"{place}expected the run's tags within {TOLERANCE:g}, got a difference of {worst:.2g}"
        )
    return largest


def _path_logs(answers: Mapping[str, np.ndarray], tagged: np.ndarray) -> np.ndarray:
    """Of each window the logarithm of its path's probability a word, [V]."""
    logs = np.log(np.maximum(answers["path_probabilities"], LEAST))
    return (logs * tagged).sum(axis=1) / np.maximum(tagged.sum(axis=1), 1)
