import json
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, label_ranking_average_precision_score, ndcg_score

from training.metrics.ranking import query_values, ranking_scores

MEANS = ("map", "mrr", "ndcg_at_10", "recall_at_1", "recall_at_5", "recall_at_10")


def _rows(rows, queries, seed, grades=2):
    generator = np.random.default_rng(seed)
    return (
        generator.integers(grades, size=rows),
        generator.permutation(rows) / rows,  # no ties
        generator.integers(queries, size=rows),
    )


def test_one_query_by_hand():
    # In order of the scores: wrong, right, wrong, right.
    scores = ranking_scores(np.array([1, 0, 1, 0]), np.array([0.3, 0.9, 0.7, 0.5]), np.zeros(4, int))
    discount = 1 / np.log2(np.arange(2, 6))
    assert scores == pytest.approx(
        {
            "map": (1 / 2 + 2 / 4) / 2,
            "mrr": 1 / 2,
            "ndcg_at_10": (discount[1] + discount[3]) / (discount[0] + discount[1]),
            "recall_at_1": 0.0,
            "recall_at_5": 1.0,
            "recall_at_10": 1.0,
            "queries": 1,
            "queries_without_right": 0,
            "queries_with_only_right": 0,
        }
    )


def test_graded_relevance_is_the_gain():
    # Grades in order of the scores: 1, 3, 0.
    scores = ranking_scores(np.array([3, 0, 1]), np.array([0.5, 0.1, 0.9]), np.zeros(3, int))
    third = 1 / np.log2(3)
    assert scores["ndcg_at_10"] == pytest.approx((1 + 3 * third) / (3 + 1 * third))
    assert scores["map"] == scores["mrr"] == 1.0


def test_negative_relevance_is_wrong_without_gain():
    below = ranking_scores(np.array([-2.0, 1.5, -0.1]), np.array([3.0, 2.0, 1.0]), np.zeros(3, int))
    zero = ranking_scores(np.array([0, 1.5, 0]), np.array([3.0, 2.0, 1.0]), np.zeros(3, int))
    assert below == zero and below["mrr"] == 0.5


def test_ndcg_at_10_uses_ten_ranks():
    relevance = np.arange(12) == 11
    scores = ranking_scores(relevance, -np.arange(12.0), np.zeros(12, int))
    assert scores["ndcg_at_10"] == scores["recall_at_10"] == 0.0
    assert scores["mrr"] == scores["map"] == pytest.approx(1 / 12)


def test_recall_divides_by_all_right_candidates():
    scores = ranking_scores(np.ones(20), np.arange(20.0), np.zeros(20, int))
    assert [scores[f"recall_at_{depth}"] for depth in (1, 5, 10)] == pytest.approx([1 / 20, 5 / 20, 10 / 20])


def test_queries_without_right_are_left_out():
    relevance = np.array([0, 0, 1, 1, 0, 1])
    scores = np.array([0.9, 0.1, 0.4, 0.2, 0.8, 0.3])
    result = ranking_scores(relevance, scores, np.array([7, 7, 3, 3, 5, 5]))
    assert (result["queries"], result["queries_without_right"], result["queries_with_only_right"]) == (
        2,
        1,
        1,
    )
    assert result["map"] == result["mrr"] == pytest.approx((1.0 + 0.5) / 2)


@pytest.mark.parametrize("rows", [0, 3])
def test_no_scored_query_gives_none(rows):
    result = ranking_scores(np.zeros(rows), np.arange(float(rows)), np.arange(rows))
    assert all(result[name] is None for name in MEANS)
    assert result["queries"] == 0 and result["queries_without_right"] == rows
    assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_ties_rank_wrong_candidates_first():
    # A model that says the same of all candidates is no better than one that has them all wrong.
    relevance, _, queries = _rows(200, 20, 0, grades=3)
    constant = ranking_scores(relevance, np.zeros(200), queries)
    worst = ranking_scores(relevance, -relevance, queries)
    assert constant == worst
    assert ranking_scores(np.array([1, 0]), np.array([0.5, 0.5]), np.zeros(2, int))["mrr"] == 0.5


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(2, 60), seed=st.integers(0, 10_000), grades=st.integers(2, 4))
def test_each_query_equals_scikit_learn(rows, seed, grades):
    relevance, scores, queries = _rows(rows, 4, seed, grades)
    values = query_values(relevance, scores, queries).values
    evaluated = [query for query in np.unique(queries) if (relevance[queries == query] > 0).any()]
    assert all(len(column) == len(evaluated) for column in values.values())
    for position, query in enumerate(evaluated):
        mine = queries == query
        right = (relevance[mine] > 0).astype(int)
        # average_precision_score steps over thresholds, the other over labels: two ways to one number.
        assert values["map"][position] == pytest.approx(average_precision_score(right, scores[mine]))
        assert values["map"][position] == pytest.approx(
            label_ranking_average_precision_score(right[None], scores[mine][None])
        )
        if mine.sum() > 1:
            expected = ndcg_score(relevance[mine][None], scores[mine][None], k=10)
            assert values["ndcg_at_10"][position] == pytest.approx(expected)


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 60), seed=st.integers(0, 10_000), grades=st.integers(2, 4), ties=st.booleans())
def test_row_order_and_monotone_changes_do_not_matter(rows, seed, grades, ties):
    relevance, scores, queries = _rows(rows, 5, seed, grades)
    if ties:
        scores = scores.round(1)
    order = np.random.default_rng(seed + 1).permutation(rows)
    expected = ranking_scores(relevance, scores, queries)
    assert ranking_scores(relevance[order], scores[order], 100 - queries[order]) == pytest.approx(expected)
    assert ranking_scores(relevance, np.exp(3 * scores) - 7, queries) == pytest.approx(expected)


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 60), seed=st.integers(0, 10_000), grades=st.integers(2, 4))
def test_order_by_relevance_is_best(rows, seed, grades):
    relevance, scores, queries = _rows(rows, 5, seed, grades)
    relevance[0] = 1  # something to find
    perfect = ranking_scores(relevance, relevance, queries)
    assert perfect["map"] == perfect["mrr"] == perfect["ndcg_at_10"] == 1.0
    other = ranking_scores(relevance, scores, queries)
    assert all(0.0 <= other[name] <= perfect[name] for name in MEANS)


def test_a_hundred_thousand_rows_take_less_than_a_second():
    rows = _rows(100_000, 5_000, 0)
    started = time.process_time()
    ranking_scores(*rows)
    assert time.process_time() - started < 1.0


@pytest.mark.parametrize(
    ("relevance", "scores", "queries", "message"),
    [
        ([1, 0], [0.1, np.nan], [0, 0], "score of row 1 is not finite"),
        ([1, 0], [np.inf, 0.1], [0, 0], "score of row 0 is not finite"),
        ([1, np.nan], [0.2, 0.1], [0, 0], "relevance of row 1"),
        ([1, 0], [0.2, 0.1], [0], r"\(2,\), \(2,\) and \(1,\)"),
        ([[1, 0]], [[0.2, 0.1]], [[0, 0]], r"one shape \[R\]"),
    ],
)
def test_mismatched_arrays_raise(relevance, scores, queries, message):
    with pytest.raises(ValueError, match=message):
        ranking_scores(np.array(relevance), np.array(scores), np.array(queries))
