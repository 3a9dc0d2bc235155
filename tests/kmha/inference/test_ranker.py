import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmha.errors import InputError
from kmha.inference import ranker as module
from kmha.inference import vectors
from kmha.inference.ranker import Ranker, top_indices
from kmha.inference.vectors import TextVectors
from tests.bundles import EDGE_CASES, TEXTS, make_pair_bundle, one_label_bundle, pair_bundle

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
def test_without_candidates_nothing_is_ranked(form):
    assert Ranker(make_pair_bundle(form=form), []).rank("bread") == []


@pytest.mark.parametrize("form", ["cross", "bi", "joint"])
def test_equal_candidates_have_equal_scores_in_the_order_given(form):
    # In a batch of thirty, equal rows may differ in the last bit.
    ranker = Ranker(make_pair_bundle(form=form), ["bread", "old", *["bread"] * 30])
    ranked = ranker.rank("new bread")
    assert [each.index for each in ranked if each.index != 1] == [0, *range(2, 32)]
    assert len({each.score for each in ranked if each.index != 1}) == 1


def test_candidates_are_ranked_in_many_batches_as_in_one(monkeypatch):
    texts = [*TEXTS * 3, *EDGE_CASES[:12]]
    expected = Ranker(pair_bundle(), texts).scores(TEXTS[1])
    assert np.isfinite(expected).all()
    monkeypatch.setattr(module, "BATCH_TOKENS", 60)
    np.testing.assert_allclose(Ranker(pair_bundle(), texts).scores(TEXTS[1]), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("bundle", "given"),
    [
        (one_label_bundle, "a classifier"),
        (lambda: make_pair_bundle(labels=["a", "b"], target="classes"), "a matcher of classes"),
    ],
)
def test_a_model_without_a_score_cannot_rank(bundle, given):
    with pytest.raises(InputError, match=f"ranking: expected a matcher that gives scores, got {given}"):
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
    monkeypatch.setattr(vectors, "CHUNK_ROWS", 3)
    monkeypatch.setattr(vectors, "BATCH_TOKENS", 30)
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
