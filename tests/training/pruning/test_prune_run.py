"""Selection of parts; pruned models predict like models whose parts are multiplied by zero."""

import numpy as np
import pytest

from tests.pruned_models import KINDS, features_of, random_selection, zero
from training.pruning.importance import prunable_groups
from training.pruning.prune_run import count_weights, select_parts, slice_model


@pytest.mark.parametrize("kind", KINDS)
def test_removed_parts_equal_parts_times_zero(kind):
    bundle = KINDS[kind]()
    model, features = bundle.model, features_of(bundle)
    heads, rows = random_selection(model)
    smaller = slice_model(model, prunable_groups(model), heads, rows)()
    whole, pruned = count_weights(model), count_weights(smaller)
    assert whole[0] - pruned[0] == whole[1] - pruned[1] > 0
    for group, of_heads, of_rows in zip(prunable_groups(smaller), heads, rows, strict=True):
        for block, its_heads, its_rows in zip(group.blocks, of_heads, of_rows, strict=True):
            assert (block.heads, block.rows) == (len(its_heads), len(its_rows))
            assert block.output_kernel.shape[0] == len(its_heads) * block.head_size
            assert block.contract_kernel.shape[0] == len(its_rows)
    zero(model, heads, rows)
    found, expected = (each(features, training=False) for each in (smaller, model))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["own encoders", "two ways", "joint"])
def test_the_maps_of_a_block_are_its_own_attention(kind):
    """Without queries and keys the attention of a block is uniform, and only that of the block."""
    bundle = KINDS[kind]()
    model, features = bundle.model, features_of(bundle)

    def attention():
        weights = model(features, return_attention_weights=True, training=False)[1]
        return {(name, i): each.numpy() for name, stack in weights.items() for i, each in enumerate(stack)}

    blocks = [block for group in prunable_groups(model) for block in group.blocks]
    whole = attention()
    assert sorted(place for block in blocks for place in block.maps) == sorted(whole)
    for block in blocks:
        kernel = block.layer.attention.query_key_value_kernel
        bias = block.layer.attention.query_key_value_bias
        before = kernel.numpy(), bias.numpy()
        for each in (kernel, bias):
            each.assign(0 * each)
        found = attention()
        for each, value in zip((kernel, bias), before, strict=True):
            each.assign(value)
        for place in block.maps:
            even = (found[place] > 0) / (found[place] > 0).sum(axis=-1, keepdims=True)
            np.testing.assert_allclose(found[place], even, atol=1e-6)
            assert np.abs(whole[place] - found[place]).max() > 1e-3


def arrays(*groups):
    return [[np.array(block, float) for block in group] for group in groups]


def as_lists(selection):
    return [[block.tolist() for block in group] for group in selection]


def test_the_least_important_parts_of_all_blocks_are_removed():
    selected = select_parts(arrays([[5, 1, 9, 2]], [[8, 7, 6, 3]]), 0.375)
    assert as_lists(selected) == [[[0, 2]], [[0, 1, 2]]]


def test_at_least_the_share_is_removed():
    assert sum(len(block) for (block,) in select_parts(arrays([[1, 2, 3, 4]], [[5, 6, 7, 8]]), 0.3)) == 5
    assert sum(len(block) for (block,) in select_parts(arrays([[1, 2, 3, 4]], [[5, 6, 7, 8]]), 0.25)) == 6
    assert sum(len(block) for (block,) in select_parts(arrays([range(10)]), 0.7)) == 3


@pytest.mark.parametrize("share", [0.5, 0.75, 0.99])
def test_each_block_keeps_its_most_important_part(share):
    selected = select_parts(arrays([[0.1, 0.2]], [[3, 1, 2]], [[0.05]]), share)
    assert all(len(block) >= 1 for (block,) in selected)
    if share > 0.7:
        assert as_lists(selected) == [[[1]], [[0]], [[0]]]


def test_blocks_of_a_group_lose_the_same_number():
    selected = select_parts(arrays([[1, 5, 9], [7, 8, 2]], [[4, 4.5, 6]]), 0.2)
    assert as_lists(selected) == [[[1, 2], [0, 1]], [[0, 1, 2]]]
    # Three of nine: the pair first, then the least important of the rest.
    selected = select_parts(arrays([[1, 5, 9], [7, 8, 2]], [[4, 4.5, 6]]), 0.3)
    assert as_lists(selected) == [[[1, 2], [0, 1]], [[1, 2]]]


def test_ties_are_broken_by_order():
    assert as_lists(select_parts(arrays([[1, 1, 1]]), 0.3)) == [[[1, 2]]]
