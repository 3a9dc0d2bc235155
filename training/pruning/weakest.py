"""Which of many parts to do without: the weakest of all blocks together, but one of each block stays."""

import math
from collections.abc import Sequence

import numpy as np


def kept_parts(groups: Sequence[Sequence[np.ndarray]], share: float) -> list[list[np.ndarray]]:
    """What stays of each block.

    The blocks of a group lose as many parts each, because they share a size; which ones, each has its own.

    Args:
        groups: Of each block of each group the worth of its parts, float [N]; N is the same in a group.
        share: Of all parts, to be removed at least, in (0, 1); fewer where each block has one part left.

    Returns:
        As `groups`, the numbers of the parts that stay, ascending.
    """
    # Of 10 parts .7 are 7, whatever binary fractions make of it.
    wanted = math.ceil(share * sum(len(block) for group in groups for block in group) - 1e-9)
    # What the next step of each group costs: the mean worth of the weakest part that each of its blocks still has.
    steps = [
        (float(cost), number)
        for number, group in enumerate(groups)
        for cost in np.mean([np.sort(block) for block in group], axis=0)[:-1]
    ]
    lost = [0] * len(groups)
    for _, number in sorted(steps):
        if wanted <= 0:
            break
        lost[number] += 1
        wanted -= len(groups[number])
    return [
        [np.sort(np.argsort(block, kind="stable")[count:]) for block in group]
        for group, count in zip(groups, lost, strict=True)
    ]
