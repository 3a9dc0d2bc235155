"""Selects the unlabeled texts whose labels help a classifier most."""

from collections.abc import Sequence

import numpy as np


def select_texts(
    probabilities: np.ndarray,
    vectors: np.ndarray,
    count: int,
    seed: int,
    thresholds: Sequence[float] | None = None,
) -> np.ndarray:
    """Selects texts that are uncertain and different from each other.

    Each text has the gradient of the loss of its own prediction with regard to the head: large if the prediction is
    uncertain, and similar for similar texts. k-means++ draws texts that are far from those selected before, and from 0,
    the gradient of a confident prediction.

    Args:
        probabilities: float32 [R, C].
        vectors: float32 [R, D], of length 1.
        count: Number of texts to select.
        seed: Random seed of the draws.
        thresholds: With several labels, the threshold of each; None: a text has one label.

    Returns:
        Rows in the order of selection, int64 [min(count, R)].

    Source: BADGE, Ash et al. 2020, arXiv:1906.03671.
    """
    if thresholds is None:
        decided = np.eye(probabilities.shape[1], dtype=bool)[probabilities.argmax(axis=1)]
    else:
        decided = probabilities >= np.asarray(thresholds, np.float32)
    errors = (probabilities - decided).astype(np.float64)
    vectors = vectors.astype(np.float64)
    # A gradient is the outer product of error and vector: products of gradients need no [R, C, D] array.
    norms = (errors**2).sum(axis=1) * (vectors**2).sum(axis=1)
    random = np.random.default_rng([seed, 17])
    left = np.ones(len(vectors), bool)
    distances = norms
    chosen: list[int] = []
    for _ in range(min(count, len(vectors))):
        weights = np.where(left, np.maximum(distances, 0.0), 0.0)
        if not chosen:
            row = int(norms.argmax())
        elif weights.sum() > 0:
            row = int(random.choice(len(weights), p=weights / weights.sum()))
        else:
            # All that are left equal a selected one.
            row = int(np.flatnonzero(left)[0])
        chosen.append(row)
        left[row] = False
        products = (errors @ errors[row]) * (vectors @ vectors[row])
        distances = np.minimum(distances, norms + norms[row] - 2 * products)
    return np.array(chosen, np.int64)
