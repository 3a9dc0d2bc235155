"""A model that lost parts answers as one in which they are multiplied by zero."""

import numpy as np
import pytest

from tests.pruned_models import KINDS, features_of, some_kept, zero
from training.pruning.apply import sliced, weight_counts
from training.pruning.prunable_blocks import prunable_groups


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_cut_off_is_what_was_multiplied_by_zero(kind):
    bundle = KINDS[kind]()
    model, features = bundle.model, features_of(bundle)
    heads, rows = some_kept(model)
    smaller = sliced(model, prunable_groups(model), heads, rows)()
    whole, cut = weight_counts(model), weight_counts(smaller)
    assert whole[0] - cut[0] == whole[1] - cut[1] > 0
    for group, of_heads, of_rows in zip(prunable_groups(smaller), heads, rows, strict=True):
        for block, its_heads, its_rows in zip(group.blocks, of_heads, of_rows, strict=True):
            assert (block.heads, block.rows) == (len(its_heads), len(its_rows))
            assert block.output_kernel.shape[0] == len(its_heads) * block.head_size
            assert block.contract_kernel.shape[0] == len(its_rows)
    zero(model, heads, rows)
    found, expected = (each(features, training=False) for each in (smaller, model))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["own encoders", "two ways", "joint"])
def test_each_block_is_said_to_have_its_own_attention(kind):
    """Without queries and keys a block's attention is even, and so is that of no block below it."""
    bundle = KINDS[kind]()
    model, features = bundle.model, features_of(bundle)

    def looked():
        weights = model(features, return_attention_weights=True, training=False)[1]
        return {(name, i): each.numpy() for name, stack in weights.items() for i, each in enumerate(stack)}

    blocks = [block for group in prunable_groups(model) for block in group.blocks]
    whole = looked()
    assert sorted(place for block in blocks for place in block.maps) == sorted(whole)
    for block in blocks:
        kernel = block.layer.attention.query_key_value_kernel
        bias = block.layer.attention.query_key_value_bias
        before = kernel.numpy(), bias.numpy()
        for each in (kernel, bias):
            each.assign(0 * each)
        found = looked()
        for each, value in zip((kernel, bias), before, strict=True):
            each.assign(value)
        for place in block.maps:
            even = (found[place] > 0) / (found[place] > 0).sum(axis=-1, keepdims=True)
            np.testing.assert_allclose(found[place], even, atol=1e-6)
            assert np.abs(whole[place] - found[place]).max() > 1e-3
