import dataclasses

import numpy as np
import pytest

from kmha.errors import InputError
from kmha.models.encoder import TransformerEncoder
from kmha.pretrained.sources import find_checkpoint
from kmha.pretrained.weights import assign_weights, encoder_variables
from tests.kmha.pretrained.folders import GOLDEN, filled, hidden_states

BERT = find_checkpoint(str(GOLDEN / "bert"))
WEIGHTS = BERT.read_weights()


def built(**changes) -> TransformerEncoder:
    encoder = TransformerEncoder(dataclasses.replace(BERT.config, **changes))
    encoder.build({"token_ids": (None, None)})
    return encoder


def values(encoder) -> dict[str, np.ndarray]:
    return {path: np.asarray(variable) for path, variable in encoder_variables(encoder).items()}


def test_paths_do_not_depend_on_the_parent_of_the_encoder():
    from tests.bundles import one_label_bundle

    paths = list(encoder_variables(one_label_bundle().model.encoder))
    assert "embedding/tokens/embeddings" in paths and "block_0/attention/output_bias" in paths
    assert not any("seed" in path for path in paths)


@pytest.mark.parametrize(
    ("ours", "theirs", "kept"), [(1, 2, [1]), (2, 6, [2, 5]), (3, 6, [1, 3, 5]), (3, 4, [0, 2, 3])]
)
def test_fewer_blocks_are_evenly_spaced_with_the_last_one(ours, theirs, kept):
    some = {path: weight for path, weight in WEIGHTS.items() if not path.startswith("block_1/")}
    blocks = {path.partition("/")[2]: weight for path, weight in some.items() if path.startswith("block_0/")}
    for block in range(theirs):
        some |= {f"block_{block}/{path}": np.full_like(weight, block) for path, weight in blocks.items()}
    encoder = built(num_layers=ours)
    assert assign_weights(encoder, some, theirs) == []
    found = values(encoder)
    for block, source in enumerate(kept):
        for path in blocks:
            assert (found[f"block_{block}/{path}"] == source).all()
    np.testing.assert_array_equal(found["norm/gamma"], WEIGHTS["norm/gamma"])


def test_more_blocks_than_there_are_is_rejected():
    with pytest.raises(InputError, match="num_layers must be at most the checkpoint's 2, got 3"):
        assign_weights(built(num_layers=3), WEIGHTS, 2)


def test_a_shorter_encoder_takes_the_first_positions():
    encoder = built(max_length=7)
    assert assign_weights(encoder, WEIGHTS, 2) == []
    np.testing.assert_array_equal(
        values(encoder)["embedding/position/table"], WEIGHTS["embedding/position/table"][:7]
    )


def test_a_longer_encoder_is_rejected():
    with pytest.raises(InputError, match=r"position/table must have shape \[25, 16\], got \[24, 16\]"):
        assign_weights(built(max_length=25), WEIGHTS, 2)


def test_selected_rows_give_the_same_states_with_new_ids():
    rows = [0, 1, 2, 3, 4, 30, 7, 12]
    pruned = built(vocabulary_size=len(rows))
    assert assign_weights(pruned, WEIGHTS, 2, rows) == []
    ids = np.array([[2, 5, 6, 7, 3]], "int32")
    mask, segments = np.ones_like(ids), np.zeros_like(ids)
    found = hidden_states(pruned, ids, mask, segments)[-1]
    expected = hidden_states(filled(BERT), np.asarray(rows, "int32")[ids], mask, segments)[-1]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_missing_weights_are_unchanged_and_reported():
    encoder = built(ngram_buckets=11, ngram_dim=4)
    before = values(encoder)
    untouched = assign_weights(encoder, WEIGHTS, 2)
    assert untouched and all("ngrams" in path for path in untouched)
    after = values(encoder)
    for path, value in before.items():
        assert (path in untouched) == bool(np.array_equal(value, after[path]))


def test_another_width_is_rejected():
    with pytest.raises(InputError, match=r"must have shape \[40, 8\], got \[40, 16\]"):
        assign_weights(built(hidden_dim=8), WEIGHTS, 2)
