"""The deletion test on a model whose words are worth known amounts."""

import numpy as np
import pytest

from tests.training.explanation.questions import question
from training.explanation.deletion_benchmark import measured, table
from training.explanation.deletion_test import deletion, falls, left_out, steps, word_scores

WORTH = (0.1, 0.4, 0.0, 0.2)


def test_leaving_a_word_out_costs_what_it_is_worth():
    np.testing.assert_allclose(left_out(question(worth=WORTH)), WORTH, atol=1e-7)


@pytest.mark.parametrize(
    ("count", "expected"), [(0, []), (1, [1]), (2, [1]), (5, [1, 2]), (16, [1, 2, 3, 4, 5, 6, 7, 8])]
)
def test_half_of_the_words_go_at_most(count, expected):
    assert steps(count) == expected


@pytest.mark.parametrize("count", range(1, 200))
def test_steps_grow_and_are_eight_at_most(count):
    found = steps(count)
    assert found == sorted(set(found)) and len(found) <= 8 and found[0] == 1
    assert found[-1] == max(count // 2, 1)


def test_the_best_words_go_first():
    asked = question(worth=WORTH)
    found = falls(asked, {"best": np.array(WORTH)}, [1, 2, 4], 5, np.random.default_rng(0))
    np.testing.assert_allclose([each["best"] for each in found], [0.4, 0.6, 0.7], atol=1e-7)
    # All words: no draw can differ.
    last = found[-1]
    np.testing.assert_allclose([last["random_low"], last["random"], last["random_high"]], 0.7, atol=1e-7)


def test_words_that_must_stay_stay():
    asked = question(worth=WORTH)
    asked = type(asked)(**{**vars(asked), "droppable": [0, 2, 3]})
    found = falls(asked, {"best": np.array(WORTH)}, [3], 3, np.random.default_rng(0))
    np.testing.assert_allclose(found[0]["best"], 0.3, atol=1e-7)
    assert left_out(asked)[1] == 0


def test_many_draws_come_near_the_mean_word():
    asked = question(worth=WORTH)
    found = falls(asked, {}, [1], 4000, np.random.default_rng(0))
    np.testing.assert_allclose(found[0]["random"], np.mean(WORTH), atol=0.01)


def test_the_same_seed_gives_the_same_table():
    asked = question()
    scores = word_scores(asked)
    assert deletion(asked, scores, 4, 1) == deletion(asked, scores, 4, 1)
    assert set(scores) == {"attention", "gradient", "left_out"}


def test_one_word_is_nothing_to_test():
    assert deletion(question(("bread",), (0.7,)), {}, 3, 0) is None


def test_rows_are_averaged_and_short_ones_skipped():
    rows = [question(worth=WORTH), question(worth=WORTH[::-1]), None, question(("bread",), (0.7,))]
    result = measured(iter(rows), 50, 0)
    assert (result["rows"], result["skipped"], result["words"]) == (2, 2, 4)
    assert [each["share"] for each in result["shares"]] == [0.1, 0.2, 0.3, 0.5]
    for each, expected in zip(result["shares"], (0.4, 0.4, 0.4, 0.6), strict=True):
        # The gradients of this model are what its words are worth.
        np.testing.assert_allclose([each["gradient"], each["left_out"]], expected, atol=1e-6)
        low, high = each["interval"]
        assert low <= each["attention_minus_random"] <= high
        np.testing.assert_allclose(each["attention_minus_random"], each["attention"] - each["random"])
    assert len(table(result)) == 5 and table(result)[0].startswith("dropped")


def test_no_rows_are_no_table():
    assert table(measured(iter([None]), 3, 0)) == ["no row had two words or more to drop"]
