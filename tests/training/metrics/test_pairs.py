import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics

from training.metrics.pairs import binary_pair_scores, graded_scores

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
    answers = (probabilities >= np.float32(threshold)).astype(int)
    scores = binary_pair_scores(true, probabilities, threshold)
    expected = {
        "rows": rows,
        "accuracy": metrics.accuracy_score(true, answers),
        "f1": metrics.f1_score(true, answers, zero_division=_ZERO),
        "precision": metrics.precision_score(true, answers, zero_division=_ZERO),
        "recall": metrics.recall_score(true, answers),
        "roc_auc": metrics.roc_auc_score(true, probabilities),
        "average_precision": metrics.average_precision_score(true, probabilities),
        "loss": metrics.log_loss(true, probabilities.astype(float)),
        "threshold": threshold,
    }
    matrix = metrics.confusion_matrix(true, answers, labels=[0, 1])
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
