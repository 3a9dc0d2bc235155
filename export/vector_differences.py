"""How far the vectors that a copy gives are from the bundle's, and whether that is near enough."""

from dataclasses import dataclass

import numpy as np

from export.differences import MOST_DIFFERENCE

# Of rounded weights the numbers move, but what is near must stay near: the same share as of labels that stay.
LEAST_COSINE = 0.99
# Names by which a predictor gives vectors of the first text of a pair; see `export.predictors.Predictor.vectors`.
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
    finite = np.asarray(np.isfinite(found).all(axis=1))
    given = np.where(finite[:, None], found, 0.0).astype(np.float64)
    cosines = (given * expected).sum(axis=1) / np.maximum(np.linalg.norm(given, axis=1), 1e-12)
    # Zeros have no direction; the same zeros are the same vector.
    cosines = np.where(np.equal(given, expected).all(axis=1) & finite, 1.0, cosines)
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
