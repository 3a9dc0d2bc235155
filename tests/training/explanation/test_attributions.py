"""Attributions of artificial traces."""

import numpy as np
import pytest

from tests.training.explanation.explanations import weights
from training.explanation.attributions import (
    NO_WORD,
    RowTrace,
    attention_rollout,
    build_attributions,
    count_heads,
    join_word_pieces,
    pair_attention_rollout,
)

A, B = ["[CLS]", "old", "bread", "[SEP]"], ["[CLS]", "new", "[SEP]"]
WORDS = {"tokens_a": [-1, 0, 1, -1], "tokens_b": [-1, 2, -1]}


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_a_text_has_one_sequence_and_one_map(pooling):
    attention = weights(2, 3, 4, 4)
    gradients = np.array([0.5, 1.0, -2.0, 0.25], np.float32)
    attributions = build_attributions(
        RowTrace({"tokens": A}, {"attention": attention}, {"tokens": gradients}),
        {"tokens": WORDS["tokens_a"]},
        pooling,
    )
    (row,), (only,) = attributions.sequences, attributions.maps
    assert row.tokens == A and only.weights is attention
    expected = (
        attention_rollout(attention)[0] if pooling == "cls" else attention_rollout(attention).mean(axis=0)
    )
    np.testing.assert_allclose(np.asarray(row.rollout), expected)
    scores = attributions.word_scores(2)
    np.testing.assert_allclose(scores["gradient"], [1, -2])
    np.testing.assert_allclose(scores["attention"], expected[1:3])


def test_the_rollout_of_a_tag_starts_at_its_tokens():
    attention = weights(1, 2, 4, 4)
    attributions = build_attributions(
        RowTrace({"tokens": A}, {"attention": attention}, None), {"tokens": [-1, 0, 1, -1]}, "mean", [2]
    )
    np.testing.assert_allclose(np.asarray(attributions.sequences[0].rollout), attention_rollout(attention)[2])
    assert list(attributions.word_scores(2)) == ["attention"]


def test_the_texts_of_one_sequence_are_split():
    attention = weights(2, 3, 6, 6)
    attributions = build_attributions(
        RowTrace({"tokens_a": A, "tokens_b": B}, {"attention": attention}, None), WORDS, "mean"
    )
    assert [row.tokens for row in attributions.sequences] == [A, B[1:]]
    assert attributions.sequences[1].words == [2, -1]
    names = [each.name for each in attributions.maps]
    assert names == ["A attends to B", "B attends to A", "Within A", "Within B"]
    np.testing.assert_array_equal(attributions.maps[0].weights, attention[:, :, :4, 4:])
    np.testing.assert_array_equal(attributions.maps[1].weights, attention[:, :, 4:, :4])
    for each in attributions.maps:
        sizes = tuple(len(attributions.sequences[number].tokens) for number in (each.rows, each.columns))
        assert each.weights.shape == (2, 3, *sizes) and not each.round
    np.testing.assert_allclose(sum(np.sum(np.asarray(row.rollout)) for row in attributions.sequences), 1)


@pytest.mark.parametrize("cross", [True, False])
def test_texts_encoded_apart_have_cross_attention_or_none(cross):
    attention = {"attention_a": weights(2, 2, 4, 4), "attention_b": weights(2, 2, 3, 3)}
    if cross:
        attention |= {"attention_a_to_b": weights(1, 2, 4, 3), "attention_b_to_a": weights(1, 2, 3, 4)}
    attributions = build_attributions(
        RowTrace({"tokens_a": A, "tokens_b": B}, attention, None), WORDS, "mean"
    )
    names = ["A attends to B", "B attends to A"] if cross else []
    assert [each.name for each in attributions.maps] == [*names, "Within A", "Within B"]
    assert [each.round for each in attributions.maps] == [*([True] * len(names)), False, False]
    shares = [np.sum(np.asarray(row.rollout)) for row in attributions.sequences]
    np.testing.assert_allclose(sum(shares), 1)
    if not cross:
        np.testing.assert_allclose(shares, 0.5)


def test_each_granularity_has_its_sequences():
    tokens = {"char_tokens_a": A, "char_tokens_b": B, "word_tokens_a": A, "word_tokens_b": B}
    attention = {
        f"{name}_attention_{side}": weights(1, 2, size, size)
        for name in ("char", "word")
        for side, size in (("a", 4), ("b", 3))
    }
    words = {f"{name}_{key}": value for name in ("char", "word") for key, value in WORDS.items()}
    attributions = build_attributions(RowTrace(tokens, attention, None), words, "mean")
    assert [row.name for row in attributions.sequences] == [
        *("Text A (char)", "Text B (char)", "Text A (word)", "Text B (word)")
    ]
    assert [(each.rows, each.columns) for each in attributions.maps] == [(0, 0), (1, 1), (2, 2), (3, 3)]


def test_one_layer_is_half_attention_and_half_the_token_itself():
    first = np.array([[[[0.0, 1.0], [0.5, 0.5]], [[1.0, 0.0], [0.5, 0.5]]]])
    np.testing.assert_allclose(attention_rollout(first), [[0.75, 0.25], [0.25, 0.75]])


def test_layers_are_multiplied_from_the_last_to_the_first():
    given = weights(2, 1, 3, 3)
    layers = [0.5 * each[0] + 0.5 * np.eye(3) for each in given.astype(np.float64)]
    np.testing.assert_allclose(attention_rollout(given), layers[1] @ layers[0])


@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_rows_sum_to_one(rounds):
    across = (weights(rounds, 2, 4, 3), weights(rounds, 2, 3, 4)) if rounds else (None, None)
    found = pair_attention_rollout(weights(2, 2, 4, 4), weights(1, 2, 3, 3), *across)
    assert found.shape == (7, 7)
    np.testing.assert_allclose(found.sum(axis=1), 1)
    # Without rounds there is no cross-attention.
    assert bool(found[:4, 4:].any()) == bool(rounds)


def test_a_round_mixes_the_other_text_in():
    still = np.eye(2)[None, None]
    found = pair_attention_rollout(still, still, weights(1, 3, 2, 2, seed=1), weights(1, 3, 2, 2, seed=2))
    np.testing.assert_allclose(found[:2, 2:], 0.5 * weights(1, 3, 2, 2, seed=1)[0].mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(found[:2, :2], 0.5 * np.eye(2))


def test_fully_masked_rows_are_the_identity():
    np.testing.assert_allclose(attention_rollout(np.zeros((2, 2, 3, 3))), np.eye(3))


def test_pruned_heads_are_ignored():
    given = weights(2, 3, 4, 4)
    fewer = np.concatenate([given, np.zeros((2, 2, 4, 4), np.float32)], axis=1)
    np.testing.assert_allclose(attention_rollout(fewer), attention_rollout(given))
    assert [count_heads(layer) for layer in fewer] == [3, 3]
    np.testing.assert_allclose(
        pair_attention_rollout(fewer, given, fewer, given), pair_attention_rollout(given, given, given, given)
    )


def test_pieces_are_joined_to_words():
    """Scores and received attention add up; the rows of a word's own attention keep their sum."""
    tokens = ["[CLS]", "un", "##like", "##ly", "ferry", "[SEP]"]
    weights = np.random.default_rng(0).dirichlet(np.ones(6), (2, 3, 6)).astype(np.float32)
    gradients = np.arange(6.0, dtype=np.float32)
    trace = RowTrace({"tokens": tokens}, {"attention": weights}, {"tokens": gradients})
    words = {"tokens": [NO_WORD, 0, 0, 0, 1, NO_WORD]}
    whole = build_attributions(trace, words, "mean")
    joined = join_word_pieces(whole)
    (row,), (map_,) = joined.sequences, joined.maps
    assert (row.tokens, row.words) == (["[CLS]", "unlikely", "ferry", "[SEP]"], [NO_WORD, 0, 1, NO_WORD])
    assert row.gradient is not None and row.gradient.tolist() == [0, 6, 4, 5]
    for name, scores in joined.word_scores(2).items():
        np.testing.assert_allclose(scores, whole.word_scores(2)[name])
    assert map_.weights.shape == (2, 3, 4, 4) and map_.weights.dtype == np.float32
    np.testing.assert_allclose(map_.weights.sum(axis=-1), 1, atol=1e-6)
    np.testing.assert_allclose(map_.weights[0, 0, 1, 2], weights[0, 0, 1:4, 4].mean(), atol=1e-6)
    np.testing.assert_allclose(map_.weights[0, 0, 2, 1], weights[0, 0, 4, 1:4].sum(), atol=1e-6)
