"""Vectors of texts: from each model, of length 1, and independent of other texts."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from kmha.errors import InputError
from kmha.inference import retrieval
from kmha.inference.retrieval import Ranker, TextVectors, top_indices
from tests.bundles import (
    EDGE_CASES,
    SENTENCES,
    TAGGERS,
    TEXTS,
    make_bundle,
    make_pair_bundle,
    one_label_bundle,
    pair_bundle,
    several_label_bundle,
    tagger_bundle,
)
from tests.stages import with_stages


@functools.cache
def post_norm_bundle():
    return make_bundle(norm="post", num_segments=2)


@functools.cache
def cross_bundle():
    return make_pair_bundle(("wordpiece", "char"), form="cross", share_weights=False)


BUNDLES = {
    "pre-norm": several_label_bundle,
    "post-norm": post_norm_bundle,
    "cross": cross_bundle,
    "tagger": tagger_bundle,
    "tagger of characters": lambda: tagger_bundle("characters"),
}
every_bundle = pytest.mark.parametrize("name", BUNDLES)


@functools.cache
def reader(name: str) -> TextVectors:
    return TextVectors(BUNDLES[name]())


def unit(pooled: np.ndarray) -> np.ndarray:
    return pooled / np.linalg.norm(pooled, axis=-1, keepdims=True)


@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_classifier_vector_is_the_input_of_its_head(norm, pooling):
    """Pooled and normalized in NumPy, from the outputs of the encoder."""
    bundle = make_bundle(norm=norm)
    bundle.model.pooling.mode = pooling
    found = TextVectors(bundle)(TEXTS)
    for row, text in enumerate(TEXTS[:3]):
        features = bundle.preprocessor(tf.constant([text]))
        states = bundle.model.encoder(features).numpy()[0]
        pooled = {"cls": states[0], "mean": states.mean(axis=0), "max": states.max(axis=0)}[pooling]
        if norm == "pre":
            layer = bundle.model.pooled_norm
            centered = (pooled - pooled.mean()) / np.sqrt(pooled.var() + layer.epsilon)
            pooled = centered * layer.gamma.numpy() + layer.beta.numpy()
        np.testing.assert_allclose(found[row], unit(pooled), atol=1e-5)
        logits = pooled @ bundle.model.head.kernel.numpy() + bundle.model.head.bias.numpy()
        np.testing.assert_allclose(logits, bundle.model(features).numpy()[0], atol=1e-4)


@pytest.mark.parametrize("kind", with_stages(TAGGERS, ["spelt"]))
def test_a_tagger_vector_is_the_mean_of_its_tokens(kind):
    bundle = tagger_bundle(kind)
    preprocessor, read = bundle.preprocessor, TextVectors(bundle)
    for text in SENTENCES[:3]:
        encoded = preprocessor.encode(preprocessor.words(tf.constant([text])).words)
        features = preprocessor.pad(encoded)
        states = bundle.model.encode_tokens(features).numpy()[0][features["padding_mask"].numpy()[0] > 0]
        np.testing.assert_allclose(read([text])[0], unit(states.mean(axis=0)), atol=1e-5)


def test_a_tagger_vector_is_of_the_first_window():
    found = reader("tagger")(["bread " * 200, "bread " * 300, "bread " * 5])
    np.testing.assert_allclose(found[0], found[1], atol=1e-6)
    assert np.abs(found[0] - found[2]).max() > 0.01


def test_a_text_of_the_cross_form_is_encoded_alone():
    bundle = cross_bundle()
    for side in "ab":
        found = TextVectors(bundle, side)(TEXTS[:2])
        for row, text in enumerate(TEXTS[:2]):
            pooled = []
            for name, pair in zip(bundle.model.granularities, bundle.model.pairs, strict=True):
                part = dict(zip(bundle.preprocessor.granularities, bundle.preprocessor.parts, strict=True))[
                    name
                ]
                made = part(tf.constant([text]))
                states, _ = pair.encode(made["token_ids"], made["padding_mask"], side)
                pooled.append(pair.norm(tf.reduce_mean(states, axis=1)).numpy()[0])
            np.testing.assert_allclose(found[row], unit(np.concatenate(pooled)), atol=1e-5)


@every_bundle
def test_vectors_have_length_one_and_distinguish_texts(name):
    found = reader(name)([*TEXTS, *EDGE_CASES])
    assert found.dtype == np.float32 and found.shape[1] == reader(name).dim
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-5)
    assert np.ptp(found[: len(TEXTS)], axis=0).max() > 0.05


@pytest.mark.second
@every_bundle
@settings(max_examples=8)
@given(
    text=st.one_of(st.sampled_from(TEXTS), st.text(max_size=40)),
    before=st.lists(st.text(max_size=60), max_size=3),
    after=st.lists(st.sampled_from(TEXTS), min_size=1, max_size=3),
)
def test_other_texts_in_the_batch_never_change_a_vector(name, text, before, after):
    together = reader(name)([*before, text, *after])
    np.testing.assert_allclose(together[len(before)], reader(name)([text])[0], atol=1e-5)


@every_bundle
def test_batching_never_changes_a_vector(name, monkeypatch):
    texts = [*TEXTS, *SENTENCES, "", " "]
    together = reader(name)(texts)
    monkeypatch.setattr(retrieval, "CHUNK_ROWS", 3)
    monkeypatch.setattr(retrieval, "BATCH_TOKENS", 30)
    np.testing.assert_allclose(reader(name)(texts), together, atol=1e-5)
    chunks = list(reader(name).stream(iter(texts)))
    assert [text for chunk, _ in chunks for text in chunk] == texts
    assert max(len(chunk) for chunk, _ in chunks) == 3
    np.testing.assert_allclose(np.concatenate([found for _, found in chunks]), together, atol=1e-5)
    assert reader(name)([]).shape == (0, reader(name).dim)


def test_rows_without_a_token_give_finite_vectors():
    zeros = np.zeros((2, 5), np.int32)
    features = {"token_ids": zeros, "padding_mask": zeros}
    for bundle in (several_label_bundle(), post_norm_bundle()):
        assert np.isfinite(bundle.model.vectors(features).numpy()).all()
    # A text without tokens gives zeros, without beta or bias.
    assert not post_norm_bundle().model.vectors(features).numpy().any()


@pytest.mark.parametrize("make", [several_label_bundle, cross_bundle, tagger_bundle])
def test_input_other_than_texts_is_rejected(make):
    read = TextVectors(make())
    for wrong in ([None], ["a", 3]):
        with pytest.raises(InputError, match="texts must be strings, got"):
            read(wrong)  # pyright: ignore


def test_a_matcher_of_the_joint_form_has_no_vectors_of_single_texts():
    with pytest.raises(
        InputError, match="expected a model that encodes each text by itself, got .* joint form"
    ):
        TextVectors(make_pair_bundle(form="joint"))


BI = {"form": "bi", "share_weights": False}


@pytest.fixture(scope="module")
def bi_bundle():
    return make_pair_bundle(("char", "wordpiece"), **BI)


@given(scores=st.lists(st.sampled_from([0.0, 0.5, 0.25, -1.0]), min_size=1), top=st.integers(1, 9))
def test_candidates_are_sorted_by_score_and_index(scores, top):
    expected = sorted(range(len(scores)), key=lambda place: (-scores[place], place))[:top]
    assert top_indices(np.array(scores, np.float32), top).tolist() == expected


def test_a_ranking_is_the_candidates_by_their_scores():
    ranker = Ranker(pair_bundle(), TEXTS)
    scores = ranker.scores(TEXTS[0])
    assert scores.dtype == np.float32 and scores.shape == (len(TEXTS),)
    ranked = ranker.rank(TEXTS[0])
    assert [each.index for each in ranked] == np.argsort(-scores, kind="stable").tolist()
    assert [each.score for each in ranked] == pytest.approx(sorted(scores.tolist(), reverse=True))
    assert ranker.rank(TEXTS[0], top=2) == ranked[:2]
    assert ranker.rank(TEXTS[0], top=99) == ranked


@pytest.mark.parametrize("form", ["cross", "bi", "joint"])
def test_without_candidates_the_ranking_is_empty(form):
    assert Ranker(make_pair_bundle(form=form), []).rank("bread") == []


@pytest.mark.parametrize("form", ["cross", "bi", "joint"])
def test_equal_candidates_have_equal_scores_in_input_order(form):
    # In a batch of thirty, equal rows may differ in the last bit.
    ranker = Ranker(make_pair_bundle(form=form), ["bread", "old", *["bread"] * 30])
    ranked = ranker.rank("new bread")
    assert [each.index for each in ranked if each.index != 1] == [0, *range(2, 32)]
    assert len({each.score for each in ranked if each.index != 1}) == 1


def test_candidates_are_ranked_in_many_batches_as_in_one(monkeypatch):
    texts = [*TEXTS * 3, *EDGE_CASES[:12]]
    expected = Ranker(pair_bundle(), texts).scores(TEXTS[1])
    assert np.isfinite(expected).all()
    monkeypatch.setattr(retrieval, "BATCH_TOKENS", 60)
    np.testing.assert_allclose(Ranker(pair_bundle(), texts).scores(TEXTS[1]), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("bundle", "got"),
    [
        (one_label_bundle, "a classifier"),
        (lambda: make_pair_bundle(labels=["a", "b"], target="classes"), "a matcher of classes"),
    ],
)
def test_a_model_without_a_score_cannot_rank(bundle, got):
    with pytest.raises(InputError, match=f"ranking: expected a matcher that gives scores, got {got}"):
        Ranker(bundle(), ["a"])


@pytest.mark.parametrize("form", ["cross", "bi"])
def test_candidates_and_queries_must_be_texts(form):
    bundle = make_pair_bundle(form=form)
    wrong: list = ["a", None]
    with pytest.raises(InputError, match="texts must be strings, got NoneType"):
        Ranker(bundle, wrong)
    with pytest.raises(InputError, match="texts must be strings, got NoneType"):
        Ranker(bundle, ["a", "b"]).scores(wrong[1])


# Vectors.


def test_vectors_are_of_length_one_and_give_the_scores(bi_bundle):
    a, b = TextVectors(bi_bundle, "a")(TEXTS), TextVectors(bi_bundle, "b")(TEXTS)
    assert a.shape == b.shape == (len(TEXTS), bi_bundle.model.vector_dim) and a.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(a, axis=1), 1, rtol=1e-5)
    # Each side has separate weights.
    assert np.abs(a - b).max() > 0.1
    model = bi_bundle.model
    logits = model.cosine_scale.numpy() * np.sum(a * b, axis=1) + model.cosine_bias.numpy()
    expected = bi_bundle.probabilities(list(zip(TEXTS, TEXTS, strict=True)))[:, 0]
    np.testing.assert_allclose(1 / (1 + np.exp(-logits)), expected, atol=1e-5)


def test_a_vector_depends_on_its_text_alone(bi_bundle, monkeypatch):
    reader = TextVectors(bi_bundle)
    texts = [*TEXTS, *EDGE_CASES]
    together = reader(texts)
    assert np.isfinite(together).all()
    np.testing.assert_allclose(np.concatenate([reader([text]) for text in texts]), together, atol=1e-5)
    monkeypatch.setattr(retrieval, "CHUNK_ROWS", 3)
    monkeypatch.setattr(retrieval, "BATCH_TOKENS", 30)
    np.testing.assert_allclose(reader(texts), together, atol=1e-5)
    assert reader([]).shape == (0, bi_bundle.model.vector_dim)


def test_stored_vectors_rank_as_their_texts_do(bi_bundle):
    stored = TextVectors(bi_bundle, "b")(TEXTS)
    expected = Ranker(bi_bundle, TEXTS).rank(TEXTS[2])
    assert Ranker(bi_bundle, TEXTS, stored).rank(TEXTS[2]) == expected
    for wrong in (stored[:-1], stored[:, :-1], stored.astype(np.float64), np.full_like(stored, np.nan)):
        with pytest.raises(InputError, match="vectors: expected finite float32 of shape"):
            Ranker(bi_bundle, TEXTS, wrong)


@pytest.mark.parametrize("form", ["cross", "joint"])
def test_only_the_bi_form_ranks_by_vectors(form):
    bundle = make_pair_bundle(form=form)
    with pytest.raises(InputError, match="bi form"):
        Ranker(bundle, TEXTS, np.zeros((len(TEXTS), 16), np.float32))
