"""A tagger's graph of ids."""

import numpy as np
import pytest
import tensorflow as tf

from export.graph.model_function import OUTPUTS, ids_function, ids_specs, input_names, output_name
from kmha.text.ragged import Ragged
from tests.bundles import TAGGERS, tagger_bundle
from tests.export.tagger_bundles import EDGE_CASE_WORDS, WORDS

# Each in one window, even where every character is a token.
ROWS = [*WORDS[2:4], *EDGE_CASE_WORDS[:5]]


def features_of_words(bundle, rows, length=None):
    flat = [word.encode("utf-8", "replace") for row in rows for word in row]
    words = Ragged.from_row_lengths(tf.constant(flat, tf.string), [len(row) for row in rows])
    lengths = (None, None) if length is None else (length, length - 2)
    return bundle.preprocessor.pad(bundle.preprocessor.encode(words), lengths)


@pytest.mark.parametrize("kind", TAGGERS)
@pytest.mark.parametrize("length", [None, 24])
def test_token_ids_give_the_predictions_of_their_sentences(kind, length):
    bundle = tagger_bundle(kind)
    names = input_names(bundle)
    assert output_name(bundle) == "probabilities"
    features = features_of_words(bundle, ROWS, length)
    specs = ids_specs(bundle, None, length)
    assert [spec.name for spec in specs] == names
    assert ("character_ids" in names) == bundle.preprocessor.characters
    function = ids_function(bundle, with_attention=True).get_concrete_function(*specs)
    answers = function(*(features[name] for name in names))
    mask = features["word_mask"].numpy() > 0
    expected = bundle.tagger.tag(ROWS)
    assert set(answers) == {*OUTPUTS, "attention"}
    np.testing.assert_allclose(answers["probabilities"].numpy()[mask], expected.probabilities, atol=1e-5)
    np.testing.assert_array_equal(answers["tag_ids"].numpy()[mask], expected.tag_ids)
    found = answers["path_probabilities"].numpy()
    np.testing.assert_allclose(found[mask], expected.path_probabilities, atol=1e-5)
    assert not found[~mask].any() and not answers["scores"].numpy()[~mask].any()
    steps = features["token_ids"].shape[1]
    layers = bundle.model.encoder_config.num_layers
    assert answers["attention"].shape == (len(ROWS), layers, 2, steps, steps)


def test_scores_decode_to_the_tags_of_sentences():
    bundle = tagger_bundle()
    features = features_of_words(bundle, ROWS)
    answers = ids_function(bundle)(*(features[name] for name in input_names(bundle)))
    assert set(answers) == set(OUTPUTS)
    expected = bundle.model(features, training=False)
    np.testing.assert_allclose(answers["scores"], expected, atol=1e-5)
    assert answers["tag_ids"].dtype == tf.int32


def test_a_length_leaves_room_for_as_many_words_as_tokens():
    shapes = {spec.name: spec.shape.as_list() for spec in ids_specs(tagger_bundle(), 1, 10)}
    assert shapes == {
        "token_ids": [1, 10],
        "padding_mask": [1, 10],
        "word_starts": [1, 8],
        "word_mask": [1, 8],
        "character_ids": [1, 8, 20],
    }
