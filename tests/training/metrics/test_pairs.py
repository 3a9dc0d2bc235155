import json
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics
from sklearn.metrics import average_precision_score, label_ranking_average_precision_score, ndcg_score

from training.metrics.bootstrap import Resampling, bootstrap_interval
from training.metrics.pairs import (
    binary_pair_resampled,
    binary_pair_scores,
    graded_resampled,
    graded_scores,
    query_values,
    ranking_resampled,
    ranking_scores,
)

_ZERO: Any = 0  # the stubs of scikit-learn know only strings


def _pairs(rows, seed=0):
    generator = np.random.default_rng(seed)
    true = generator.integers(2, size=rows)
    return true, np.clip(0.3 * true + 0.7 * generator.random(rows), 0.01, 0.99).astype(np.float32)


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(2, 60), seed=st.integers(0, 10_000), threshold=st.floats(0, 1))
def test_binary_scores_equal_scikit_learn(rows, seed, threshold):
    true, probabilities = _pairs(rows, seed)
    true[:2] = 0, 1
    predictions = (probabilities >= np.float32(threshold)).astype(int)
    scores = binary_pair_scores(true, probabilities, threshold)
    expected = {
        "rows": rows,
        "accuracy": metrics.accuracy_score(true, predictions),
        "f1": metrics.f1_score(true, predictions, zero_division=_ZERO),
        "precision": metrics.precision_score(true, predictions, zero_division=_ZERO),
        "recall": metrics.recall_score(true, predictions),
        "roc_auc": metrics.roc_auc_score(true, probabilities),
        "average_precision": metrics.average_precision_score(true, probabilities),
        "loss": metrics.log_loss(true, probabilities.astype(float)),
        "threshold": threshold,
    }
    matrix = metrics.confusion_matrix(true, predictions, labels=[0, 1])
    assert scores.pop("confusion_matrix") == matrix.tolist()
    assert scores == pytest.approx(expected | {"ece": scores["ece"]})
    assert 0 <= scores["ece"] <= 1


def test_calibration_uses_the_probability_of_1():
    scores = binary_pair_scores(np.array([1, 0, 0]), np.array([0.1, 0.11, 0.5]), 0.9)
    assert scores["ece"] == pytest.approx((abs(0.21 - 1) + 0.5) / 3)


def test_probability_at_the_threshold_matches_in_float32():
    assert binary_pair_scores(np.array([1]), np.array([0.3], np.float32), 0.3)["accuracy"] == 1.0


def test_confident_wrong_pair_has_a_finite_loss():
    assert 1 < binary_pair_scores(np.array([0, 1]), np.array([1.0, 0.0]), 0.5)["loss"] < 20


def test_undefined_pair_scores_are_none():
    nothing = binary_pair_scores(np.zeros(0, int), np.zeros(0), 0.5)
    assert nothing.pop("rows") == 0 and nothing.pop("threshold") == 0.5
    assert nothing.pop("confusion_matrix") == [[0, 0], [0, 0]]
    assert len(nothing) == 8 and set(nothing.values()) == {None}
    only_right = binary_pair_scores(np.array([1, 1]), np.array([0.2, 0.9]), 0.5)
    assert only_right["roc_auc"] is None and only_right["average_precision"] is None
    assert only_right["recall"] == 0.5 and only_right["confusion_matrix"] == [[0, 0], [1, 1]]


@settings(max_examples=50, deadline=None)
@given(rows=st.integers(3, 40), seed=st.integers(0, 10_000), ties=st.booleans())
def test_graded_scores_equal_scipy(rows, seed, ties):
    generator = np.random.default_rng(seed)
    true = generator.normal(size=rows)
    guesses = true + generator.normal(size=rows)
    true[:2], guesses[:2] = (0, 2), (5, 1)  # neither side is constant
    if ties:
        true, guesses = true.round(), guesses.round()
    scores = graded_scores(true, guesses)
    assert scores == pytest.approx(
        {
            "rows": rows,
            "pearson": np.corrcoef(true, guesses)[0, 1],
            "spearman": np.corrcoef(stats.rankdata(true), stats.rankdata(guesses))[0, 1],
            "mse": metrics.mean_squared_error(true, guesses),
            "mae": metrics.mean_absolute_error(true, guesses),
            "loss": metrics.mean_squared_error(true, guesses),
        },
        abs=1e-12,
    )
    assert scores["spearman"] == pytest.approx(stats.spearmanr(true, guesses)[0], abs=1e-12)


def test_graded_scores_by_hand():
    scores = graded_scores(np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 9.0]))
    assert scores["spearman"] == pytest.approx(1.0)
    assert scores["pearson"] == pytest.approx(8 / np.sqrt(2 * 38))
    assert scores["mse"] == scores["loss"] == 12.0 and scores["mae"] == 2.0


@pytest.mark.parametrize("constant", [0.0, 0.1, 1e38])
@pytest.mark.parametrize("rows", [0, 1, 3, 7])
def test_a_constant_side_has_no_correlation(constant, rows):
    for scores in (
        graded_scores(np.full(rows, constant), np.arange(rows) / 10),
        graded_scores(np.arange(rows) / 10, np.full(rows, constant)),
    ):
        assert scores["pearson"] is scores["spearman"] is None


@pytest.mark.parametrize("size", [1e-200, 1e-20, 1e20, 1e150])
def test_correlation_of_very_small_and_large_numbers(size):
    true, guesses = np.array([1.0, 2.0, 4.0]), np.array([2.0, 1.0, 5.0])
    assert graded_scores(size * true, guesses)["pearson"] == pytest.approx(
        graded_scores(true, guesses)["pearson"]
    )


@settings(max_examples=50, deadline=None)
@given(rows=st.integers(0, 8), seed=st.integers(0, 999))
def test_every_pair_score_is_json(rows, seed):
    true, probabilities = _pairs(rows, seed)
    for scores in (
        binary_pair_scores(true, probabilities, 0.5),
        graded_scores(true.astype(np.float32), probabilities),
    ):
        assert json.loads(json.dumps(scores, allow_nan=False)) == scores


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: binary_pair_scores(np.array([0, 2]), np.ones(2), 0.5), "got 2"),
        (lambda: binary_pair_scores(np.array([0, 1]), np.ones(3), 0.5), r"\(2,\) and \(3,\)"),
        (lambda: binary_pair_scores(np.ones((1, 1)), np.ones((1, 1)), 0.5), r"one shape \[R\]"),
        (lambda: binary_pair_scores(np.array([0, 1]), np.array([0.5, np.nan]), 0.5), "row 1"),
        (lambda: graded_scores(np.ones(2), np.ones(3)), r"\(2,\) and \(3,\)"),
        (lambda: graded_scores(np.array([0, np.nan]), np.ones(2)), "truth of row 1"),
        (lambda: graded_scores(np.ones(2), np.array([np.inf, 0])), "score of row 0"),
    ],
)
def test_mismatched_pairs_raise(call, message):
    with pytest.raises(ValueError, match=message):
        call()


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
    # A model that scores all candidates equally is no better than one that ranks all wrong ones first.
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


def _rounded_pairs(rows, seed=0, decimals=2):
    generator = np.random.default_rng(seed)
    true = generator.integers(2, size=rows)
    return true, np.clip(0.2 * true + 0.8 * generator.random(rows), 0, 1).round(decimals)


def _grades(rows, seed=0, decimals=1):
    generator = np.random.default_rng(seed)
    true = generator.integers(6, size=rows) / 2
    return true, (true + generator.normal(size=rows)).round(decimals)


def _rankings(queries, seed=0):
    generator = np.random.default_rng(seed)
    query = np.repeat(np.arange(queries), 8)
    relevance = generator.integers(4, size=len(query)) == 0
    return relevance, relevance + generator.normal(size=len(query)), query


@pytest.mark.parametrize("name", ["accuracy", "f1", "roc_auc", "average_precision"])
def test_binary_intervals_equal_resampled_rows(name):
    true, probabilities = _rounded_pairs(150)
    slow = bootstrap_interval(
        lambda true, probabilities: binary_pair_scores(true, probabilities, 0.55)[name],
        true,
        probabilities,
        resampling=Resampling(1, 300),
    )
    fast = binary_pair_resampled(true, probabilities, 0.55).intervals(Resampling(resamples=2000))
    assert fast[name] == pytest.approx(slow, abs=0.03)


@pytest.mark.parametrize(
    ("name", "slack"), [("pearson", 0.03), ("spearman", 0.03), ("mse", 0.1), ("mae", 0.05)]
)
def test_graded_intervals_equal_resampled_rows(name, slack):
    true, scores = _grades(150)
    slow = bootstrap_interval(
        lambda true, scores: graded_scores(true, scores)[name], true, scores, resampling=Resampling(1, 600)
    )
    assert graded_resampled(true, scores).intervals(Resampling(resamples=2000))[name] == pytest.approx(
        slow, abs=slack
    )


def test_ranking_intervals_equal_resampled_queries():
    rows = _rankings(80)
    values = query_values(*rows).values
    fast = ranking_resampled(*rows).intervals(Resampling(resamples=2000))
    assert set(fast) == {"map", "mrr", "ndcg_at_10"}
    for name, interval in fast.items():
        slow = bootstrap_interval(
            lambda column: float(column.mean()), values[name], resampling=Resampling(1, 1000)
        )
        assert interval == pytest.approx(slow, abs=0.02)


def test_resampled_queries_give_wider_intervals_than_rows():
    # All 50 queries alike inside: 25 always right first, 25 always wrong first.
    query = np.repeat(np.arange(50), 20)
    relevance = np.tile(np.arange(20) == 0, 50)
    scores = np.where(query % 2, relevance, -1.0 * relevance)
    lower, upper = ranking_resampled(relevance, scores, query).intervals()["mrr"]
    # The mean of 50 draws of 1 or 1/20.
    half_width = 1.96 * 0.475 / np.sqrt(50)
    assert upper - lower == pytest.approx(2 * half_width, abs=0.04)


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 12), seed=st.integers(0, 10_000))
def test_one_resample_scores_like_its_rows(rows, seed):
    """A single resample is its own interval: each statistic then equals the score of the drawn rows."""
    one = {"resampling": Resampling(seed, 1)}
    true, probabilities = _rounded_pairs(rows, seed, decimals=1)
    drawn = _drawn(np.stack([true, probabilities], axis=1), 1000 * true + probabilities, seed)
    _assert_ends(
        binary_pair_resampled(true, probabilities, 0.5).intervals(**one),
        binary_pair_scores(true, probabilities, 0.5),
        binary_pair_scores(drawn[:, 0].astype(int), drawn[:, 1], 0.5),
        ("accuracy", "f1", "roc_auc", "average_precision"),
    )
    true, scores = _grades(rows, seed, decimals=0)
    drawn = _drawn(np.stack([true, scores], axis=1), 1000 * true + scores, seed)
    _assert_ends(
        graded_resampled(true, scores).intervals(**one),
        graded_scores(true, scores),
        graded_scores(*drawn.T),
        ("pearson", "spearman", "mse", "mae"),
    )


def _drawn(rows, order, seed):
    """The rows of the resample: distinct rows in ascending `order`, as often as the generator draws them."""
    rows = rows[np.argsort(order, kind="stable")]
    _, first, sizes = np.unique(np.sort(order), return_index=True, return_counts=True)
    counts = np.random.default_rng(seed).multinomial(len(rows), sizes / len(rows))
    return np.repeat(rows[first], counts, axis=0)


def _assert_ends(intervals, given, drawn, names):
    for name in names:
        defined = given[name] is not None and drawn[name] is not None
        assert (name in intervals) == defined, name
        if defined:
            assert intervals[name] == pytest.approx([drawn[name]] * 2, abs=1e-9), name


def test_undefined_scores_have_no_interval():
    assert binary_pair_resampled(np.zeros(0, int), np.zeros(0), 0.5).intervals() == {}
    assert graded_resampled(np.zeros(0), np.zeros(0)).intervals() == {}
    assert ranking_resampled(np.zeros(0), np.zeros(0), np.zeros(0, int)).intervals() == {}
    assert ranking_resampled(np.zeros(3), np.arange(3.0), np.zeros(3, int)).intervals() == {}
    assert set(binary_pair_resampled(np.ones(5, int), np.full(5, 0.9), 0.5).intervals()) == {"accuracy", "f1"}
    assert set(graded_resampled(np.full(5, 0.1), np.arange(5.0)).intervals()) == {"mse", "mae"}


def test_undefined_resamples_are_left_out():
    true = np.array([1, 0, 0, 0])
    intervals = binary_pair_resampled(true, np.array([0.9, 0.1, 0.2, 0.3]), 0.5).intervals()
    assert intervals["roc_auc"] == intervals["average_precision"] == [1.0, 1.0]


def test_pair_intervals_contain_the_score_and_follow_the_seed():
    pairs, grades, rankings = _rounded_pairs(200), _grades(200), _rankings(50)
    calls = [
        (
            lambda **more: binary_pair_resampled(*pairs, 0.5).intervals(**more),
            binary_pair_scores(*pairs, 0.5),
        ),
        (lambda **more: graded_resampled(*grades).intervals(**more), graded_scores(*grades)),
        (lambda **more: ranking_resampled(*rankings).intervals(**more), ranking_scores(*rankings)),
    ]
    for call, scores in calls:
        intervals = call()
        assert all(lower < scores[name] < upper for name, (lower, upper) in intervals.items())
        assert (
            json.loads(json.dumps(intervals))
            == intervals
            == call(resampling=Resampling(0))
            != call(resampling=Resampling(1))
        )
        narrow = call(resampling=Resampling(level=0.5))
        assert all(narrow[name][1] < upper for name, (_, upper) in intervals.items())


def test_ten_thousand_rows_take_seconds():
    started = time.process_time()
    binary_pair_resampled(*_rounded_pairs(10_000, decimals=9), 0.5).intervals()
    graded_resampled(*_grades(10_000, decimals=9)).intervals()
    ranking_resampled(*_rankings(1_250)).intervals()
    assert time.process_time() - started < 20.0
