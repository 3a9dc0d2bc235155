"""SequenceTagger: its outputs, which do not depend on padding."""

import keras
import numpy as np
import pytest

from kmha.layers.crf import log_likelihood
from tests.bundles import TAGGERS, make_tagger_bundle, tagger_bundle


def features_of(bundle, sentences, lengths=(None, None)):
    import tensorflow as tf

    ragged = tf.ragged.constant(sentences, tf.string, ragged_rank=1)
    return bundle.preprocessor.pad(bundle.preprocessor.encode(ragged), lengths)


SENTENCES = [["a", "old", "b"], ["is"], []]


@pytest.mark.parametrize("kind", TAGGERS)
def test_outputs_do_not_depend_on_padding(kind):
    bundle = tagger_bundle(kind)
    short = bundle.model(features_of(bundle, SENTENCES)).numpy()
    long = bundle.model(features_of(bundle, SENTENCES, (24, 20))).numpy()
    assert short.shape == (3, 3, len(bundle.labels)) and long.shape[1] == 20
    np.testing.assert_allclose(long[:, :3], short, atol=1e-5)
    assert not long[:, 3:].any() and not short[2].any()


def test_attention_weights_are_those_of_every_block():
    bundle = tagger_bundle("spelt")
    features = features_of(bundle, SENTENCES)
    scores, weights = bundle.model(features, return_attention_weights=True)
    length = features["token_ids"].shape[1]
    assert len(weights) == 1 and weights[0].shape == (3, 2, length, length)
    np.testing.assert_allclose(scores, bundle.model(features), atol=1e-6)


def test_the_softmax_head_trains_no_transitions_but_forbids_some():
    bundle = make_tagger_bundle(head="softmax")
    trained = {variable.path for variable in bundle.model.trainable_variables}
    assert not any("crf" in path for path in trained)
    with_crf = {variable.path for variable in make_tagger_bundle().model.trainable_variables}
    assert len(with_crf) == len(trained) + 3
    features = features_of(bundle, SENTENCES)
    potentials = bundle.model.potentials(bundle.model(features), features["word_mask"])
    inside = bundle.labels.index("I-PER")
    assert log_likelihood(potentials, np.full((3, 3), inside, np.int32)).numpy()[0] < -1000


def test_half_precision_scores_are_float32():
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        bundle = make_tagger_bundle(**TAGGERS["spelt"])
    finally:
        keras.config.set_dtype_policy("float32")
    scores = bundle.model(features_of(bundle, SENTENCES))
    assert scores.dtype == "float32" and np.isfinite(scores).all()


def test_an_unknown_word_pooling_is_rejected():
    with pytest.raises(ValueError, match="word_pooling must be one of"):
        make_tagger_bundle(word_pooling="last")
