"""Whether what a tagger's file answers to windows is what its run does; NumPy only."""

from collections.abc import Mapping

import numpy as np

from export.outcomes import CheckError

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
    """Compares answers to windows, by the names of `export.tagger_ids`.

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
            raise CheckError(f"{place}wanted numbers, given {values[~np.isfinite(values)][0]} in {name}")
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
            f"{place}wanted the run's tags within {TOLERANCE:g}, given a difference of {worst:.2g}"
        )
    return largest


def _path_logs(answers: Mapping[str, np.ndarray], tagged: np.ndarray) -> np.ndarray:
    """Of each window the logarithm of its path's probability a word, [V]."""
    logs = np.log(np.maximum(answers["path_probabilities"], LEAST))
    return (logs * tagged).sum(axis=1) / np.maximum(tagged.sum(axis=1), 1)
