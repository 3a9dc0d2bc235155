"""Which parts stay."""

import numpy as np
import pytest

from training.pruning.apply import kept_parts


def arrays(*groups):
    return [[np.array(block, float) for block in group] for group in groups]


def as_lists(kept):
    return [[block.tolist() for block in group] for group in kept]


def test_the_weakest_of_all_blocks_go():
    kept = kept_parts(arrays([[5, 1, 9, 2]], [[8, 7, 6, 3]]), 0.375)
    assert as_lists(kept) == [[[0, 2]], [[0, 1, 2]]]


def test_at_least_the_share_goes():
    assert sum(len(block) for (block,) in kept_parts(arrays([[1, 2, 3, 4]], [[5, 6, 7, 8]]), 0.3)) == 5
    assert sum(len(block) for (block,) in kept_parts(arrays([[1, 2, 3, 4]], [[5, 6, 7, 8]]), 0.25)) == 6
    assert sum(len(block) for (block,) in kept_parts(arrays([range(10)]), 0.7)) == 3


@pytest.mark.parametrize("share", [0.5, 0.75, 0.99])
def test_each_block_keeps_its_best_part(share):
    kept = kept_parts(arrays([[0.1, 0.2]], [[3, 1, 2]], [[0.05]]), share)
    assert all(len(block) >= 1 for (block,) in kept)
    if share > 0.7:
        assert as_lists(kept) == [[[1]], [[0]], [[0]]]


def test_blocks_that_share_a_size_lose_as_many_each_their_own():
    kept = kept_parts(arrays([[1, 5, 9], [7, 8, 2]], [[4, 4.5, 6]]), 0.2)
    assert as_lists(kept) == [[[1, 2], [0, 1]], [[0, 1, 2]]]
    # Three of nine were wanted: the pair first, then the weakest of the rest.
    kept = kept_parts(arrays([[1, 5, 9], [7, 8, 2]], [[4, 4.5, 6]]), 0.3)
    assert as_lists(kept) == [[[1, 2], [0, 1]], [[1, 2]]]


def test_equal_parts_are_told_apart_the_same_way_each_time():
    assert as_lists(kept_parts(arrays([[1, 1, 1]]), 0.3)) == [[[1, 2]]]
