"""A model that lost parts answers as one in which they are multiplied by zero."""

import numpy as np
import pytest

from kmha.bundle import Bundle
from tests.bundles import PAIRS, SENTENCES, TEXTS
from tests.pruned_models import KINDS, some_kept, with_model, zeroed
from training.pruning.blocks import groups_of
from training.pruning.cutting import weight_counts
from training.pruning.sliced import sliced


def answers(bundle):
    if bundle.tagger is not None:
        return bundle.tagger.tag([sentence.split() for sentence in SENTENCES]).probabilities
    return bundle.probabilities(PAIRS if bundle.task == "match" else TEXTS)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_cut_off_is_what_was_multiplied_by_zero(kind, tmp_path):
    bundle = KINDS[kind]()
    whole, groups = weight_counts(bundle.model), groups_of(bundle.model)
    heads, rows = some_kept(bundle.model)
    smaller = with_model(bundle, sliced(bundle.model, groups, heads, rows)())
    expected = answers(zeroed(bundle, heads, rows))
    np.testing.assert_allclose(answers(smaller), expected, atol=2e-6)
    counts = weight_counts(smaller.model)
    assert whole[0] - counts[0] == whole[1] - counts[1] > 0
    for group, of_heads, of_rows in zip(groups_of(smaller.model), heads, rows, strict=True):
        for block, its_heads, its_rows in zip(group.blocks, of_heads, of_rows, strict=True):
            assert (block.heads, block.rows) == (len(its_heads), len(its_rows))
            assert block.layer.feed_forward.expand.kernel.shape[1] == len(its_rows)
    smaller.save(tmp_path / "run")
    np.testing.assert_array_equal(answers(Bundle.load(tmp_path / "run")), answers(smaller))


def test_every_head_has_its_attention_where_it_is_said():
    """The maps of a block are those that change when its queries do."""
    for kind in ("own encoders", "two ways", "joint", "one label"):
        bundle = KINDS[kind]()
        model = bundle.model
        if bundle.task == "match":
            features = bundle.preprocessor.pad(bundle.preprocessor.cut(*([text] for text in PAIRS[0])))
        else:
            features = bundle.preprocessor([TEXTS[0]])

        def looked(model=model, features=features):
            weights = model(features, return_attention_weights=True)[1]
            named = weights if isinstance(weights, dict) else {"attention": weights}
            return {(name, i): each.numpy() for name, list_ in named.items() for i, each in enumerate(list_)}

        before = looked()
        said = [place for group in groups_of(model) for block in group.blocks for place in block.maps]
        assert sorted(said) == sorted(before)
        for group in groups_of(model):
            for block in group.blocks:
                kernel = block.layer.attention.query_key_value_kernel
                kept = kernel.numpy()
                kernel.assign(kept * 0)
                flat = looked()
                kernel.assign(kept)
                for place in block.maps:
                    shape = flat[place].shape
                    np.testing.assert_allclose(flat[place], np.full(shape, 1 / shape[-1]), atol=1e-6)
