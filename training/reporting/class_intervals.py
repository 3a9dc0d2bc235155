"""Intervals for the scores of each label alone, which do not shrink to a point where a handful of rows are all right.

Each row, or span, counts as a draw of its own. Precision and recall are shares: Wilson 1927. F1 grows with another
share, of the true and given ones those that are both, and its interval follows from that one's: Lam et al. 2023,
arXiv:2309.14621, the indirect method.
"""

from scipy.stats import binomtest

LEVEL = 0.95


def share_interval(hits: int, of: int) -> list[float]:
    """The interval of a share that was found to be hits / of, [lower, upper]; empty where there is nothing."""
    if not of:
        return []
    # The probability is asked of nothing here; what counts is the interval.
    return list(binomtest(int(hits), int(of)).proportion_ci(LEVEL, "wilson"))


def class_intervals(hits: int, given: int, actual: int) -> dict[str, list[float]]:
    """Intervals of "precision", "recall" and "f1" of a label, each [lower, upper], empty where it is undefined.

    Args:
        hits: How often it is both true and given.
        given: How often it is given.
        actual: How often it is true.
    """
    share = share_interval(hits, given + actual - hits)
    return {
        "precision": share_interval(hits, given),
        "recall": share_interval(hits, actual),
        "f1": [2 * end / (1 + end) for end in share],
    }
