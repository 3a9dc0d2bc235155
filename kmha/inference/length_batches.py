"""Rows of similar length together, so that little is padded."""

from collections.abc import Iterator

import numpy as np


def length_batches(lengths: np.ndarray, most_tokens: int) -> Iterator[np.ndarray]:
    """Cuts rows into batches, shortest first.

    Args:
        lengths: Tokens of each row, integers [R].
        most_tokens: Padded tokens of a batch at most, but one row at least.

    Yields:
        Row numbers, integers [b]; the longest row of a batch comes last.
    """
    order = np.argsort(lengths, kind="stable")
    first = 0
    while first < len(order):
        last = first + 1
        while last < len(order) and (last - first + 1) * lengths[order[last]] <= most_tokens:
            last += 1
        yield order[first:last]
        first = last
