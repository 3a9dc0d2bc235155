"""Folds of cross-validation with few rows: stratified by label, and those whose encoders are averaged."""

import numpy as np


def make_folds(strata: np.ndarray, groups: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Assigns rows to folds, stratified; rows of one group are in one fold.

    Args:
        strata: The stratum of each row, int [R].
        groups: Equal for rows of one group, such as the copies of a text, [R]. The lowest stratum is that of the group.
        count: Number of folds; fewer if there are fewer groups.
        seed: Random seed.

    Returns:
        Fold of each row, int64 [R].
    """
    _, first, group = np.unique(groups, return_index=True, return_inverse=True)
    lowest = strata[first]
    np.minimum.at(lowest, group, strata)
    random = np.random.default_rng([seed, 11])
    order = np.lexsort((random.permutation(len(first)), lowest))
    folds = np.empty(len(first), np.int64)
    folds[order] = np.arange(len(first)) % count
    return folds[group]


def averaged_folds(targets: np.ndarray, folds: np.ndarray) -> np.ndarray:
    """The folds without which rows of two labels or more are left, int64; if there are none, all folds.

    With a single label, the contrastive stage moves all vectors together.

    Args:
        targets: Label ids int [R], or with several labels 0 or 1, int [R, C].
        folds: Fold of each row, int [R].
    """
    numbers = np.arange(folds.max() + 1)
    found = [fold for fold in numbers if len(np.unique(targets[folds != fold], axis=0)) > 1]
    return np.array(found, np.int64) if found else numbers


def strata_of(memberships: np.ndarray) -> np.ndarray:
    """The rarest label of each row, int64 [R]; rows without labels have a stratum of their own."""
    rarity = memberships / np.maximum(memberships.sum(axis=0), 1)
    return np.where(memberships.any(axis=1), rarity.argmax(axis=1), memberships.shape[1])
