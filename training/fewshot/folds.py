"""Folds of cross-validation."""

import numpy as np


def make_folds(labels: np.ndarray, digests: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Assigns rows to folds, stratified by label; rows of one text are in one fold.

    Args:
        labels: One label id of each row, int [R].
        digests: Equal for rows of one text, [R].
        count: Number of folds.
        seed: Random seed.

    Returns:
        Fold of each row, int64 [R], in [0, count).
    """
    _, first, text = np.unique(digests, return_index=True, return_inverse=True)
    random = np.random.default_rng([seed, 11])
    order = np.lexsort((random.permutation(len(first)), labels[first]))
    folds = np.empty(len(first), np.int64)
    folds[order] = np.arange(len(first)) % count
    return folds[text]
