import numpy as np
import pytest
from scipy.stats import binom

from training.evaluation.abstention import choose_threshold, evaluate_threshold


def drawn(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Calibrated answers."""
    rng = np.random.default_rng(seed)
    confidence = rng.uniform(0.5, 1, rows).astype(np.float32)
    return confidence, rng.random(rows) < confidence


def test_threshold_is_evaluated_on_the_used_predictions():
    confidence, correct = np.array([0.9, 0.8, 0.7, 0.6]), np.array([True, True, False, True])
    found = evaluate_threshold(0.7, confidence, correct)
    assert (found.rows, found.coverage, found.precision) == (3, 0.75, pytest.approx(2 / 3))
    assert found.precision_at_least is not None and 0.1 < found.precision_at_least < 2 / 3
    # If it were so low, two correct ones or more would be one case in ten.
    assert binom.sf(1, 3, found.precision_at_least) == pytest.approx(0.1, abs=1e-6)


def test_probability_equal_to_the_threshold_is_used():
    at = float(np.float32(0.7))
    assert evaluate_threshold(at, np.array([at], np.float32), np.array([True])).rows == 1
    assert (
        evaluate_threshold(float(np.nextafter(np.float32(at), 1)), np.array([at]), np.array([True])).rows == 0
    )


def test_no_used_prediction_has_no_precision():
    assert evaluate_threshold(1.0, np.array([0.5]), np.array([True])).values() == {
        "abstain_below": 1.0,
        "rows": 0,
        "coverage": 0.0,
        "precision": None,
        "precision_at_least": None,
    }
    assert evaluate_threshold(0.5, np.zeros(0), np.zeros(0, bool)).coverage is None


@pytest.mark.parametrize("expected", [0.8, 0.9, 0.95])
def test_threshold_has_the_largest_coverage(expected):
    confidence, correct = drawn(2000)
    found = choose_threshold(confidence, correct, expected)
    assert found is not None and found.precision is not None and found.precision_at_least is not None
    assert found.precision > found.precision_at_least >= expected
    others = [evaluate_threshold(cut, confidence, correct) for cut in np.unique(confidence)]
    good = [each.rows for each in others if (each.precision_at_least or 0) >= expected]
    assert found.rows == max(good) < len(confidence)


def test_precision_is_reached_on_other_rows():
    found = [choose_threshold(*drawn(1000, seed), 0.9) for seed in range(100)]
    made = [each.abstain_below for each in found if each is not None]
    # Of all rows like these with at least a probability, the middle between it and 1 is correct.
    kept = [(1 + below) / 2 >= 0.9 for below in made]
    assert len(made) >= 90 and np.mean(kept) >= 0.8


def test_precise_predictions_are_all_used():
    found = choose_threshold(np.full(100, 0.9), np.ones(100, bool), 0.95)
    assert found is not None and (found.abstain_below, found.coverage, found.precision) == (0.0, 1.0, 1.0)


def test_threshold_does_not_split_equal_probabilities():
    confidence = np.array([0.9] * 60 + [0.8] * 60, np.float32)
    correct = np.array([True] * 60 + [True] * 10 + [False] * 50)
    found = choose_threshold(confidence, correct, 0.95)
    assert found is not None and (found.rows, found.abstain_below) == (60, pytest.approx(0.85))
    assert choose_threshold(np.full(100, 0.9), np.arange(100) > 20, 0.95) is None
    # Two neighbours in float32 have no middle.
    near = np.where(confidence > 0.85, np.nextafter(np.float32(0.8), np.float32(1)), np.float32(0.8))
    found = choose_threshold(near, correct, 0.95)
    assert found is not None and found.rows == 60


@pytest.mark.parametrize("rows", [0, 1, 20])
def test_few_rows_have_no_threshold(rows):
    assert choose_threshold(np.full(rows, 0.99), np.ones(rows, bool), 0.95) is None
