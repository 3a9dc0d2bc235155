"""Stratified selection of training rows for validation."""

import numpy as np


def held_out(
    ids: np.ndarray,
    counts: np.ndarray,
    order: np.ndarray,
    text_starts: np.ndarray,
    fraction: float,
    seed: int,
) -> np.ndarray:
    """Selects rows to hold out: stratified by label, with all rows of a text together.

    Each label gives its share of rows, rounded so that the total is right and as close as its texts allow. Each label
    keeps a training row. If the fraction is not 0, at least one row is held out where possible.

    Args:
        ids: Concatenated label ids of all rows, int32 [sum(counts)], from 0.
        counts: Labels of each row, int32 [rows]. A multi-label row counts for its rarest label.
        order: Rows sorted so that rows of one text are adjacent, int64 [rows].
        text_starts: Start of each text in `order`, int64 [texts].
        fraction: Fraction of rows to hold out, in [0, 1).
        seed: Random seed.

    Returns:
        True for held-out rows, bool [rows].
    """
    num_rows = len(counts)
    if fraction == 0:
        return np.zeros(num_rows, np.bool_)
    random = np.random.default_rng(seed)
    sizes = np.diff(text_starts, append=num_rows)
    _, strata = np.unique(rarest_label(ids, counts)[order[text_starts]], return_inverse=True)
    stratum_rows = np.bincount(strata, weights=sizes).astype(np.int64)
    targets = _shares(stratum_rows, fraction, random)

    # Frequent texts come last, so that one text does not use up the share of its label.
    bulky = np.where(sizes > np.maximum(1, targets[strata] // 10), sizes, 0)
    by_stratum = np.lexsort((random.permutation(len(sizes)), bulky, strata))
    sizes, strata = sizes[by_stratum], strata[by_stratum]
    before = np.cumsum(sizes) - sizes
    is_first = np.diff(strata, prepend=-1) != 0
    before -= before[is_first][strata]
    is_last = np.append(is_first[1:], True)
    taken = (2 * before + sizes <= 2 * targets[strata]) & ~is_last
    if not taken.any():
        # Every text exceeds its label's share: hold out one anyway, but at most a third of all rows.
        spared = np.where(is_last | (3 * sizes > num_rows), num_rows + 1, sizes)
        taken[spared.argmin()] = spared.min() <= num_rows

    texts = np.zeros(len(sizes), np.bool_)
    texts[by_stratum] = taken
    chosen = np.zeros(num_rows, np.bool_)
    chosen[order] = np.repeat(texts, np.diff(text_starts, append=num_rows))
    return _give_back_lost_labels(chosen, ids, counts, order, text_starts)


def rarest_label(ids: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Returns the rarest label of each row, int64 [rows]; the lower id in a tie, -1 without labels.

    Args:
        ids: Concatenated label ids of all rows, int32 [sum(counts)], from 0.
        counts: Labels of each row, int32 [rows].
    """
    by_rarity = np.argsort(np.bincount(ids), kind="stable")
    rank = np.empty(len(by_rarity), np.int64)
    rank[by_rarity] = np.arange(len(by_rarity))
    rarest = np.full(len(counts), -1, np.int64)
    labelled = counts > 0
    if labelled.any():
        starts = (np.cumsum(counts) - counts)[labelled]
        rarest[labelled] = by_rarity[np.minimum.reduceat(rank[ids], starts)]
    return rarest


def _shares(stratum_rows: np.ndarray, fraction: float, random: np.random.Generator) -> np.ndarray:
    """Rows to hold out per stratum by largest remainder, at most all but one, int64 [strata]."""
    quotas = stratum_rows * fraction
    most = stratum_rows - 1
    shares = np.minimum(np.floor(quotas).astype(np.int64), most)
    expected = max(1, round(float(quotas.sum()))) - int(shares.sum())
    remainders = np.where(shares < most, quotas - shares, -1.0)
    first = np.lexsort((random.permutation(len(quotas)), -remainders))[: max(0, expected)]
    shares[first[remainders[first] >= 0]] += 1
    return shares


def _give_back_lost_labels(
    chosen: np.ndarray, ids: np.ndarray, counts: np.ndarray, order: np.ndarray, text_starts: np.ndarray
) -> np.ndarray:
    """Returns texts to training whose labels would have no training row left, bool [rows]."""
    row_of = np.repeat(np.arange(len(counts)), counts)
    trained = np.bincount(ids, weights=~chosen[row_of])
    lost = (trained == 0) & (np.bincount(ids) > 0)
    if not lost.any():
        return chosen
    text_of = np.empty(len(counts), np.int64)
    text_of[order] = np.repeat(np.arange(len(text_starts)), np.diff(text_starts, append=len(counts)))
    lost_labels, places = np.unique(np.where(lost[ids], ids, -1), return_index=True)
    returned = text_of[row_of[places[lost_labels >= 0]]]
    return chosen & ~np.isin(text_of, returned)
