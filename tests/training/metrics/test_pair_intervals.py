import json
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.metrics.bootstrap import Resampling, bootstrap_interval
from training.metrics.pair_intervals import binary_pair_intervals, graded_intervals, ranking_intervals
from training.metrics.pairs import binary_pair_scores, graded_scores
from training.metrics.ranking import query_values, ranking_scores


def _pairs(rows, seed=0, decimals=2):
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
    true, probabilities = _pairs(150)
    slow = bootstrap_interval(
        lambda true, probabilities: binary_pair_scores(true, probabilities, 0.55)[name],
        true,
        probabilities,
        resampling=Resampling(1, 300),
    )
    fast = binary_pair_intervals(true, probabilities, 0.55, resampling=Resampling(resamples=2000))
    assert fast[name] == pytest.approx(slow, abs=0.03)


@pytest.mark.parametrize(
    ("name", "slack"), [("pearson", 0.03), ("spearman", 0.03), ("mse", 0.1), ("mae", 0.05)]
)
def test_graded_intervals_equal_resampled_rows(name, slack):
    true, scores = _grades(150)
    slow = bootstrap_interval(
        lambda true, scores: graded_scores(true, scores)[name], true, scores, resampling=Resampling(1, 600)
    )
    assert graded_intervals(true, scores, resampling=Resampling(resamples=2000))[name] == pytest.approx(
        slow, abs=slack
    )


def test_ranking_intervals_equal_resampled_queries():
    rows = _rankings(80)
    values = query_values(*rows).values
    fast = ranking_intervals(*rows, resampling=Resampling(resamples=2000))
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
    lower, upper = ranking_intervals(relevance, scores, query)["mrr"]
    # The mean of 50 draws of 1 or 1/20.
    half_width = 1.96 * 0.475 / np.sqrt(50)
    assert upper - lower == pytest.approx(2 * half_width, abs=0.04)


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 12), seed=st.integers(0, 10_000))
def test_one_resample_scores_like_its_rows(rows, seed):
    """A single resample is its own interval: each statistic then equals the score of the drawn rows."""
    one = {"resampling": Resampling(seed, 1)}
    true, probabilities = _pairs(rows, seed, decimals=1)
    drawn = _drawn(np.stack([true, probabilities], axis=1), -2 * probabilities + 0.1 * true, seed)
    _assert_ends(
        binary_pair_intervals(true, probabilities, 0.5, **one),
        binary_pair_scores(true, probabilities, 0.5),
        binary_pair_scores(drawn[:, 0].astype(int), drawn[:, 1], 0.5),
        ("accuracy", "f1", "roc_auc", "average_precision"),
    )
    true, scores = _grades(rows, seed, decimals=0)
    drawn = _drawn(np.stack([true, scores], axis=1), 1000 * true + scores, seed)
    _assert_ends(
        graded_intervals(true, scores, **one),
        graded_scores(true, scores),
        graded_scores(*drawn.T),
        ("pearson", "spearman", "mse", "mae"),
    )


def _drawn(rows, order, seed):
    """The rows of the resample: distinct rows in ascending `order`, as often as the generator says."""
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
    assert binary_pair_intervals(np.zeros(0, int), np.zeros(0), 0.5) == {}
    assert graded_intervals(np.zeros(0), np.zeros(0)) == {}
    assert ranking_intervals(np.zeros(0), np.zeros(0), np.zeros(0, int)) == {}
    assert ranking_intervals(np.zeros(3), np.arange(3.0), np.zeros(3, int)) == {}
    assert set(binary_pair_intervals(np.ones(5, int), np.full(5, 0.9), 0.5)) == {"accuracy", "f1"}
    assert set(graded_intervals(np.full(5, 0.1), np.arange(5.0))) == {"mse", "mae"}


def test_undefined_resamples_are_left_out():
    true = np.array([1, 0, 0, 0])
    intervals = binary_pair_intervals(true, np.array([0.9, 0.1, 0.2, 0.3]), 0.5)
    assert intervals["roc_auc"] == intervals["average_precision"] == [1.0, 1.0]


def test_pair_intervals_contain_the_score_and_follow_the_seed():
    pairs, grades, rankings = _pairs(200), _grades(200), _rankings(50)
    calls = [
        (lambda **more: binary_pair_intervals(*pairs, 0.5, **more), binary_pair_scores(*pairs, 0.5)),
        (lambda **more: graded_intervals(*grades, **more), graded_scores(*grades)),
        (lambda **more: ranking_intervals(*rankings, **more), ranking_scores(*rankings)),
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
    binary_pair_intervals(*_pairs(10_000, decimals=9), 0.5)
    graded_intervals(*_grades(10_000, decimals=9))
    ranking_intervals(*_rankings(1_250))
    assert time.process_time() - started < 20.0
