import numpy as np
import pytest
from scipy.stats import binom

from training.evaluation.abstention import choose_threshold, evaluate_threshold


def drawn(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Calibrated answers."""
    rng = np.random.default_rng(seed)
    sure = rng.uniform(0.5, 1, rows).astype(np.float32)
    return sure, rng.random(rows) < sure


def test_a_threshold_is_judged_by_the_rows_it_leaves():
    sure, right = np.array([0.9, 0.8, 0.7, 0.6]), np.array([True, True, False, True])
    found = evaluate_threshold(0.7, sure, right)
    assert (found.rows, found.coverage, found.precision) == (3, 0.75, pytest.approx(2 / 3))
    assert found.precision_at_least is not None and 0.1 < found.precision_at_least < 2 / 3
    # If it were so low, two right ones or more would be one case in ten.
    assert binom.sf(1, 3, found.precision_at_least) == pytest.approx(0.1, abs=1e-6)


def test_a_probability_at_the_threshold_is_an_answer():
    at = float(np.float32(0.7))
    assert evaluate_threshold(at, np.array([at], np.float32), np.array([True])).rows == 1
    assert (
        evaluate_threshold(float(np.nextafter(np.float32(at), 1)), np.array([at]), np.array([True])).rows == 0
    )


def test_nothing_answered_has_no_precision():
    assert evaluate_threshold(1.0, np.array([0.5]), np.array([True])).values() == {
        "abstain_below": 1.0,
        "rows": 0,
        "coverage": 0.0,
        "precision": None,
        "precision_at_least": None,
    }
    assert evaluate_threshold(0.5, np.zeros(0), np.zeros(0, bool)).coverage is None


@pytest.mark.parametrize("expected", [0.8, 0.9, 0.95])
def test_no_other_threshold_leaves_more_answers_that_are_good_enough(expected):
    sure, right = drawn(2000)
    found = choose_threshold(sure, right, expected)
    assert found is not None and found.precision is not None and found.precision_at_least is not None
    assert found.precision > found.precision_at_least >= expected
    others = [evaluate_threshold(cut, sure, right) for cut in np.unique(sure)]
    good = [each.rows for each in others if (each.precision_at_least or 0) >= expected]
    assert found.rows == max(good) < len(sure)


def test_other_rows_mostly_keep_the_promise():
    found = [choose_threshold(*drawn(1000, seed), 0.9) for seed in range(100)]
    made = [each.abstain_below for each in found if each is not None]
    # Of all rows like these with at least a probability, the middle between it and 1 is right.
    kept = [(1 + below) / 2 >= 0.9 for below in made]
    assert len(made) >= 90 and np.mean(kept) >= 0.8


def test_rows_that_are_good_enough_as_they_are_are_all_answered():
    found = choose_threshold(np.full(100, 0.9), np.ones(100, bool), 0.95)
    assert found is not None and (found.abstain_below, found.coverage, found.precision) == (0.0, 1.0, 1.0)


def test_between_equal_probabilities_there_is_no_threshold():
    sure = np.array([0.9] * 60 + [0.8] * 60, np.float32)
    right = np.array([True] * 60 + [True] * 10 + [False] * 50)
    found = choose_threshold(sure, right, 0.95)
    assert found is not None and (found.rows, found.abstain_below) == (60, pytest.approx(0.85))
    assert choose_threshold(np.full(100, 0.9), np.arange(100) > 20, 0.95) is None
    # Two neighbours in float32 have no middle.
    near = np.where(sure > 0.85, np.nextafter(np.float32(0.8), np.float32(1)), np.float32(0.8))
    found = choose_threshold(near, right, 0.95)
    assert found is not None and found.rows == 60


@pytest.mark.parametrize("rows", [0, 1, 20])
def test_few_rows_promise_nothing(rows):
    assert choose_threshold(np.full(rows, 0.99), np.ones(rows, bool), 0.95) is None
