"""Sentences of any length are tagged as a whole, independent of the batch."""

import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from kmha.bundle.bundle import Bundle
from kmha.errors import InputError
from kmha.features import MAX_WORDS
from kmha.layers.crf import decode
from kmha.tags import broken_words
from tests.bundles import EDGE_CASES, TAGGERS, TEXTS, tagger_bundle
from tests.stages import with_stages

every_kind = pytest.mark.parametrize("kind", with_stages(TAGGERS, ["spelt"]))
SENTENCES = [text.split() for text in TEXTS if text.split()]
# Sentences of several windows: a window has at most 22 tokens.
LONG = [word for sentence in SENTENCES for word in sentence] * 3


@every_kind
def test_tags_do_not_depend_on_other_sentences(kind):
    tagger = tagger_bundle(kind).tagger
    sentences = [*SENTENCES, [], LONG, ["x"]]
    together = tagger.tag(sentences)
    assert together.lengths.tolist() == [len(sentence) for sentence in sentences]
    for sentence, found in zip(sentences, together.sentences(), strict=True):
        alone = tagger.tag([sentence])
        assert alone.tag_ids.tolist() == found.tag_ids.tolist()
        np.testing.assert_allclose(alone.probabilities, found.probabilities, atol=1e-5)
        np.testing.assert_allclose(alone.path_probabilities, found.path_probabilities, atol=1e-5)


@every_kind
def test_probabilities_sum_to_one_and_decoding_is_finite(kind):
    found = tagger_bundle(kind).tagger.tag(
        [[text.decode("utf-8", "replace")] for text in EDGE_CASES[:-2]] + [LONG]
    )
    np.testing.assert_allclose(found.probabilities.sum(axis=1), 1, atol=1e-5)
    assert np.isfinite(found.path_probabilities).all() and (found.path_probabilities > 0).all()


def test_a_sentence_that_fits_a_window_has_the_tags_of_the_model():
    bundle = tagger_bundle("spelt")
    texts, model = bundle.preprocessor, bundle.model
    sentence = SENTENCES[0]
    features = texts.pad(texts.encode(tf.ragged.constant([sentence])))
    direct = decode(model.potentials(model(features), features["word_mask"]))
    found = bundle.tagger.tag([sentence])
    assert found.tag_ids.tolist() == direct.tag_ids.numpy()[0].tolist()
    np.testing.assert_allclose(found.probabilities, direct.marginals.numpy()[0], atol=1e-5)


words = st.lists(st.sampled_from([word for sentence in SENTENCES for word in sentence]), max_size=40)


@given(st.lists(words, max_size=3))
@settings(deadline=None, max_examples=25)
def test_predicted_tags_are_valid_in_their_scheme(sentences):
    for kind in ("spelt", "characters"):
        bundle = tagger_bundle(kind)
        for found in bundle.tagger.tag(sentences).sentences():
            assert not broken_words([bundle.labels[tag] for tag in found.tag_ids], bundle.model.scheme)


def test_raw_texts_and_their_words_have_the_same_tags():
    bundle = tagger_bundle("spelt")
    raw = bundle.predict(list(TEXTS))
    split = bundle.predict([prediction["words"] for prediction in raw])
    for text, prediction, from_words in zip(TEXTS, raw, split, strict=True):
        bounds = zip(prediction["starts"], prediction["ends"], strict=True)
        assert [text[first:end] for first, end in bounds] == prediction["words"]
        assert prediction["tags"] == from_words["tags"] and "starts" not in from_words
        for span in prediction["spans"]:
            first, last = span["first_word"], span["end_word"] - 1
            assert (span["start"], span["end"]) == (prediction["starts"][first], prediction["ends"][last])
            assert 0 < span["probability"] <= prediction["probabilities"][first] + 1e-6


def test_a_span_probability_is_the_probability_of_all_its_tags():
    """Against the sum over all paths of the other words."""
    bundle = tagger_bundle("spelt")
    sentence = SENTENCES[0][:4]
    texts, model = bundle.preprocessor, bundle.model
    features = texts.pad(texts.encode(tf.ragged.constant([sentence])))
    potentials = model.potentials(model(features), features["word_mask"])
    emissions, transitions = potentials.emissions.numpy()[0], potentials.transitions.numpy()
    start, end = potentials.start.numpy(), potentials.end.numpy()
    weights = {}
    for path in itertools.product(range(len(bundle.labels)), repeat=len(sentence)):
        score = start[path[0]] + end[path[-1]] + sum(emissions[i, tag] for i, tag in enumerate(path))
        weights[path] = score + sum(transitions[pair] for pair in itertools.pairwise(path))
    top = max(weights.values())
    weights = {path: np.exp(score - top) for path, score in weights.items()}
    total = sum(weights.values())
    (prediction,) = bundle.predict([sentence])
    best = tuple(bundle.labels.index(tag) for tag in prediction["tags"])
    assert best == max(weights, key=lambda path: weights[path])
    for span in prediction["spans"]:
        inside = slice(span["first_word"], span["end_word"])
        share = sum(weight for path, weight in weights.items() if path[inside] == best[inside]) / total
        assert span["probability"] == pytest.approx(share, abs=1e-5)


def test_bytes_are_read_as_text():
    bundle = tagger_bundle("spelt")
    assert bundle.predict([b"old \xff bread"]) == bundle.predict(["old \ufffd bread"])
    assert bundle.predict([[b"old", "bread"]]) == bundle.predict([("old", "bread")])


def test_invalid_sentences_are_rejected():
    bundle = tagger_bundle("spelt")
    with pytest.raises(InputError, match="texts must be a list of strings, got one string"):
        bundle.predict("old bread")
    with pytest.raises(InputError, match="must be a list of texts or of lists of words, got one text"):
        bundle.tagger.split("old bread")
    wrong: list[Any] = [3, ["a", 3]]
    for got, each in zip(("int", "list"), wrong, strict=True):
        with pytest.raises(InputError, match=f"must be texts or lists of words, got {got}"):
            bundle.predict([each])
    with pytest.raises(InputError, match="sentence 2: expected at most 2,048 words, got 2,049"):
        list(bundle.predict_stream(iter(["fine", "x " * (MAX_WORDS + 1)])))
    with pytest.raises(InputError, match="expected a classifier or a matcher, got a tagger"):
        bundle.probabilities(["old"])


@every_kind
def test_a_loaded_bundle_gives_the_same_predictions(kind, tmp_path):
    bundle = tagger_bundle(kind)
    bundle.save(tmp_path)
    loaded = Bundle.load(tmp_path)
    assert loaded.task == "tag" and loaded.model.scheme == bundle.model.scheme
    for one, other in zip(
        loaded.tagger.tag([*SENTENCES, LONG]), bundle.tagger.tag([*SENTENCES, LONG]), strict=True
    ):
        np.testing.assert_allclose(one, other, atol=1e-5)
