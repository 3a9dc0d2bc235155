"""The deletion test on a model whose words have a known worth."""

import numpy as np
import pytest

from tests.training.explanation.explanations import explanation, linear_explanation
from training.explanation.deletion_test import (
    average_deletion_test,
    average_table,
    deletion_test,
    drop_counts,
    leave_one_out,
    value_drops,
    word_scores,
)

WORTH = (0.1, 0.4, 0.0, 0.2)


def test_leave_one_out_is_the_worth_of_the_word():
    np.testing.assert_allclose(leave_one_out(explanation(worth=WORTH)), WORTH, atol=1e-7)


@pytest.mark.parametrize(
    ("count", "expected"), [(0, []), (1, [1]), (2, [1]), (5, [1, 2]), (16, [1, 2, 3, 4, 5, 6, 7, 8])]
)
def test_at_most_half_of_the_words_are_dropped(count, expected):
    assert drop_counts(count) == expected


@pytest.mark.parametrize("count", range(1, 200))
def test_there_are_at_most_eight_increasing_steps(count):
    found = drop_counts(count)
    assert found == sorted(set(found)) and len(found) <= 8 and found[0] == 1
    assert found[-1] == max(count // 2, 1)


def test_the_best_words_are_dropped_first():
    explained = explanation(worth=WORTH)
    found = value_drops(explained, {"best": np.array(WORTH)}, [1, 2, 4], 5, np.random.default_rng(0))
    np.testing.assert_allclose([each["best"] for each in found], [0.4, 0.6, 0.7], atol=1e-7)
    # All words: all draws are equal.
    last = found[-1]
    np.testing.assert_allclose([last["random_low"], last["random"], last["random_high"]], 0.7, atol=1e-7)


def test_only_droppable_words_are_dropped():
    explained = explanation(worth=WORTH)
    explained = type(explained)(**{**vars(explained), "droppable": [0, 2, 3]})
    found = value_drops(explained, {"best": np.array(WORTH)}, [3], 3, np.random.default_rng(0))
    np.testing.assert_allclose(found[0]["best"], 0.3, atol=1e-7)
    assert leave_one_out(explained)[1] == 0


def test_many_draws_approach_the_mean_worth():
    explained = explanation(worth=WORTH)
    found = value_drops(explained, {}, [1], 4000, np.random.default_rng(0))
    np.testing.assert_allclose(found[0]["random"], np.mean(WORTH), atol=0.01)


def test_the_same_seed_gives_the_same_table():
    explained = explanation()
    scores = word_scores(explained)
    assert deletion_test(explained, scores, 4, 1) == deletion_test(explained, scores, 4, 1)
    assert set(scores) == {"attention", "gradient", "left_out"}


def test_one_word_gives_no_test():
    assert deletion_test(explanation(("bread",), (0.7,)), {}, 3, 0) is None


def test_rows_are_averaged_and_short_ones_skipped():
    rows = [explanation(worth=WORTH), explanation(worth=WORTH[::-1]), None, explanation(("bread",), (0.7,))]
    result = average_deletion_test(iter(rows), 50, 0)
    assert (result["rows"], result["skipped"], result["words"]) == (2, 2, 4)
    assert [each["share"] for each in result["shares"]] == [0.1, 0.2, 0.3, 0.5]
    for each, expected in zip(result["shares"], (0.4, 0.4, 0.4, 0.6), strict=True):
        # The gradients of this model are the worth of its words.
        np.testing.assert_allclose([each["gradient"], each["left_out"]], expected, atol=1e-6)
        low, high = each["interval"]
        assert low <= each["attention_minus_random"] <= high
        np.testing.assert_allclose(each["attention_minus_random"], each["attention"] - each["random"])
    assert len(average_table(result)) == 5 and average_table(result)[0].startswith("dropped")


@pytest.mark.parametrize("has_attention", [True, False])
def test_ngrams_are_a_method(has_attention):
    explained = linear_explanation(has_attention)
    scores = word_scores(explained)
    others = ["attention", "gradient"] if has_attention else []
    assert list(scores) == [*others, "ngrams", "left_out"]
    np.testing.assert_allclose(scores["ngrams"], 10 * np.array(WORTH), atol=1e-7)
    test = deletion_test(explained, scores, 3, 0)
    assert test is not None
    np.testing.assert_allclose([each["ngrams"] for each in test["steps"]], [0.4, 0.6], atol=1e-7)
    result = average_deletion_test(iter([explained]), 3, 0)
    assert all(np.isclose(each["ngrams"], each["left_out"]) for each in result["shares"])
    # Without attention, n-grams are compared with random words.
    compared = "attention" if has_attention else "ngrams"
    assert all(f"{compared}_minus_random" in each for each in result["shares"])
    table = average_table(result)
    assert f"{'n-grams':>18}" in table[0]
    assert table[0].endswith(f"   {'attention' if has_attention else 'n-grams'} − random")


def test_without_rows_there_is_no_table():
    assert average_table(average_deletion_test(iter([None]), 3, 0)) == [
        "no row had two words or more to drop"
    ]
