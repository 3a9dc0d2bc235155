from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom
from sklearn.metrics import accuracy_score, f1_score

from training.metrics import thresholds as module
from training.metrics.thresholds import (
    SHARED_POSITIVES,
    best_threshold,
    best_thresholds,
    choose_threshold,
    evaluate_threshold,
    steady_threshold,
)

_ZERO: Any = 0  # the stubs of scikit-learn know only strings


def _f1(true, scores, threshold):
    return f1_score(true, scores >= np.float32(threshold), zero_division=_ZERO)


def _best_f1_by_trying(true, scores):
    return max(_f1(true, scores, threshold) for threshold in scores)


POSITIVES = 10


def _rows(seed, rows, labels, decimals):
    """Rows in which each label has some positives; rounding makes probabilities tie."""
    generator = np.random.default_rng(seed)
    true = generator.integers(2, size=(rows, labels))
    true[:POSITIVES] = 1
    probabilities = np.clip(0.2 * true + 0.8 * generator.random((rows, labels)), 0, 1)
    return true, probabilities.round(decimals).astype(np.float32)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    rows=st.integers(POSITIVES, 30),
    labels=st.integers(1, 4),
    decimals=st.integers(0, 7),
)
def test_without_samples_and_sharing_no_threshold_is_better_on_the_same_rows(seed, rows, labels, decimals):
    true, probabilities = _rows(seed, rows, labels, decimals)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SAMPLED_VALUES", 0)
        patch.setattr(module, "SHARED_POSITIVES", 0)
        thresholds = best_thresholds(true, probabilities)
    assert thresholds.dtype == np.float32 and thresholds.shape == (labels,)
    for label in range(labels):
        reached = _f1(true[:, label], probabilities[:, label], thresholds[label])
        assert reached == pytest.approx(_best_f1_by_trying(true[:, label], probabilities[:, label]))
        assert reached >= _f1(true[:, label], probabilities[:, label], 0.5)


def test_with_many_positives_the_threshold_is_near_the_best():
    true, probabilities = _rows(1, 3000, 3, 7)
    probabilities *= np.array([1.0, 0.5, 0.2], np.float32)
    thresholds = best_thresholds(true, probabilities)
    for label, threshold in enumerate(thresholds):
        best = _best_f1_by_trying(true[::10, label], probabilities[::10, label])
        assert _f1(true[::10, label], probabilities[::10, label], threshold) > best - 0.01


def _rare_labels(seed, rows=500, labels=40):
    """Labels of 1 % of the rows, with noisy logits."""
    generator = np.random.default_rng(seed)
    true = generator.random((rows, labels)) < 0.01
    logits = 4.0 * true - 4.0 + 1.5 * generator.standard_normal((rows, labels))
    return true, logits


def test_thresholds_of_rare_labels_generalize(monkeypatch):
    (true, logits), (other_true, other_logits) = _rare_labels(0), _rare_labels(1)

    def macro_f1():
        predicted = other_logits >= best_thresholds(true, logits)
        return f1_score(other_true, predicted, average="macro", zero_division=_ZERO)

    steady = macro_f1()
    monkeypatch.setattr(module, "SAMPLED_VALUES", 0)
    monkeypatch.setattr(module, "SHARED_POSITIVES", 0)
    assert steady > macro_f1() + 0.03


def test_threshold_is_midway():
    true = np.repeat([[1], [0]], POSITIVES, axis=0)
    probabilities = np.repeat([[0.8], [0.2]], POSITIVES, axis=0)
    assert best_thresholds(true, probabilities)[0] == pytest.approx(0.5)


def test_adjacent_floats_are_separated():
    lower = np.float32(0.3)
    upper = np.nextafter(lower, np.float32(1))
    for low, high in ((lower, upper), (upper, np.nextafter(upper, np.float32(1)))):
        true = np.repeat([[1], [0]], POSITIVES, axis=0)
        probabilities = np.repeat([[high], [low]], POSITIVES, axis=0)
        assert best_thresholds(true, probabilities)[0] == high


@pytest.mark.parametrize("lowest", [0.3, 0.4, -3.0])
def test_label_of_all_rows_is_always_predicted(lowest):
    scores = np.linspace(lowest, lowest + 1, 12, dtype=np.float32)[:, None]
    threshold = best_thresholds(np.ones((12, 1)), scores)[0]
    assert (scores >= threshold).all()
    assert threshold >= 0 or lowest < 0


def test_scores_outside_0_and_1_are_allowed():
    true, probabilities = _rows(3, 40, 2, 7)
    margins = 20 * probabilities - 10
    assert best_thresholds(true, margins) == pytest.approx(
        20 * best_thresholds(true, probabilities) - 10, abs=1e-4
    )


def test_labels_without_positives_get_the_threshold_with_the_highest_macro_f1():
    true, probabilities = _rows(5, 40, 3, 7)
    true[:, 2] = 0
    shared = best_thresholds(true, probabilities)[2]

    def macro_f1(threshold):
        return sum(_f1(true[:, label], probabilities[:, label], threshold) for label in (0, 1))

    assert macro_f1(shared) > max(map(macro_f1, np.linspace(0, 1, 50))) - 0.02


@pytest.mark.parametrize("positives", [0, 5, 20, 100])
def test_few_positives_move_gradually_from_shared_to_own(positives):
    """The best threshold of four common labels, and so the shared one, is 0.7; that of a rare label is 0.125."""
    common = np.random.default_rng(0).integers(2, size=200)
    is_rare = np.arange(200) < positives
    probabilities = np.stack([*[np.where(common, 0.9, 0.5)] * 4, np.where(is_rare, 0.2, 0.05)], axis=1)
    found = best_thresholds(np.stack([*[common] * 4, is_rare], axis=1), probabilities)
    assert found[:4] == pytest.approx(0.7)
    weight = positives / (positives + SHARED_POSITIVES)
    assert found[4] == pytest.approx(0.125 * weight + 0.7 * (1 - weight), abs=1e-3)


def test_default_threshold_without_positives():
    nothing = np.zeros((4, 2))
    assert best_thresholds(nothing, nothing + 0.3).tolist() == [0.5, 0.5]
    assert best_thresholds(nothing, nothing, default=0.0).tolist() == [0.0, 0.0]
    assert best_thresholds(nothing[:0], nothing[:0]).tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("true", "probabilities", "message"),
    [
        (np.ones((2, 2)), np.ones((2, 3)), r"got \(2, 2\) and \(2, 3\)"),
        (np.ones(2), np.ones(2), "one shape"),
        (np.ones((1, 1)), np.array([[np.nan]]), "finite"),
    ],
)
def test_mismatched_arrays_raise(true, probabilities, message):
    with pytest.raises(ValueError, match=message):
        best_thresholds(true, probabilities)


def _accuracy_and_f1(true, scores, threshold):
    predictions = scores >= np.float32(threshold)
    return accuracy_score(true, predictions), f1_score(true, predictions, zero_division=_ZERO)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10_000), rows=st.integers(1, 30), decimals=st.integers(0, 7))
def test_no_single_threshold_is_more_accurate(seed, rows, decimals):
    generator = np.random.default_rng(seed)
    true = generator.integers(2, size=rows)
    scores = np.clip(0.2 * true + 0.8 * generator.random(rows), 0, 1).round(decimals).astype(np.float32)
    values = np.unique(np.append(scores, np.float32(0)))
    # All thresholds with different predictions: at each value, and above the highest.
    by_trying = max(_accuracy_and_f1(true, scores, threshold) for threshold in [*values, 2.0])
    threshold = best_threshold(true, scores)
    assert _accuracy_and_f1(true, scores, threshold) == pytest.approx(by_trying)
    assert threshold == np.float32(threshold)
    if not (scores == 1).any():
        assert 0 <= threshold <= 1


@pytest.mark.parametrize(
    ("true", "probabilities", "threshold"),
    [
        ([1, 0], [0.75, 0.25], 0.5),
        ([0, 1, 1], [0.125, 0.375, 0.875], 0.25),
        # Always and never predicting 1 are right once each; the first has the better F1.
        ([0, 1], [0.75, 0.25], 0.125),
        # Never predicting 1 is right twice of 3, as is a threshold below both first rows, which has the better F1.
        ([1, 0, 0], [0.25, 0.5, 0.125], 0.1875),
        # Two thresholds are right 3 times of 4, with F1 2/3 and 4/5.
        ([1, 0, 1, 0], [0.75, 0.5, 0.25, 0.125], 0.1875),
        # Never predicting 1 is right, although one probability is 1.
        ([0, 0], [0.5, 1.0], np.nextafter(np.float32(1), np.float32(2))),
        ([0, 0], [0.25, 0.5], 0.75),
        ([1, 1], [0.25, 0.5], 0.125),
    ],
)
def test_best_threshold_by_hand(true, probabilities, threshold):
    assert best_threshold(np.array(true), np.array(probabilities)) == threshold


def test_single_threshold_separates_adjacent_floats():
    lower = np.float32(0.3)
    upper = np.nextafter(lower, np.float32(1))
    for low, high in ((lower, upper), (upper, np.nextafter(upper, np.float32(1)))):
        assert best_threshold(np.array([1, 0]), np.array([high, low])) == high


def test_values_that_differ_in_float64_only_are_equal():
    # In float64 a threshold between the two would be right for both.
    assert best_threshold(np.array([1, 0]), np.array([0.25 + 1e-12, 0.25])) == 0.125


def test_default_single_threshold_without_rows():
    assert best_threshold(np.zeros(0), np.zeros(0)) == 0.5
    assert best_threshold(np.zeros(0), np.zeros(0), default=0.25) == 0.25


@pytest.mark.parametrize(
    ("true", "probabilities", "message"),
    [
        (np.ones(2), np.ones(3), r"got \(2,\) and \(3,\)"),
        (np.ones((1, 2)), np.ones((1, 2)), "one shape"),
        (np.ones(1), np.array([np.inf]), "finite"),
    ],
)
def test_single_threshold_with_mismatched_arrays_raises(true, probabilities, message):
    with pytest.raises(ValueError, match=message):
        best_threshold(true, probabilities)


@pytest.mark.parametrize(
    ("true", "probabilities", "threshold"),
    [
        ([], [], 0.5),
        ([0, 1], [0.2, 0.9], 0.5),  # the middle itself, where it is as good
        (
            [0, 1] * 200,
            [0.6, 0.9] * 200,
            0.75,
        ),  # all of 400 rows right: no other threshold is within an error
        ([0, 1] * 200, [0.1, 0.3] * 200, 0.2),
    ],
)
def test_steady_threshold_is_the_good_one_nearest_to_the_middle(true, probabilities, threshold):
    assert steady_threshold(np.array(true), np.array(probabilities)) == pytest.approx(threshold)


@given(seed=st.integers(0, 2**31), rows=st.integers(1, 200))
@settings(max_examples=50, deadline=None)
def test_steady_threshold_is_within_one_error_of_the_best(seed, rows):
    generator = np.random.default_rng(seed)
    true = generator.integers(2, size=rows)
    scores = np.clip(0.3 * true + 0.7 * generator.random(rows), 0, 1).astype(np.float32).round(2)

    def accuracy(threshold):
        return ((scores >= np.float32(threshold)) == (true == 1)).mean()

    best, found = accuracy(best_threshold(true, scores)), steady_threshold(true, scores)
    smoothed = (best * rows + 2) / (rows + 4)
    error = np.sqrt(smoothed * (1 - smoothed) / rows)
    assert accuracy(found) >= best - error - 1e-9
    thresholds = np.linspace(0.005, 0.995, 100)  # between the scores, which have two digits
    same = [
        abs(each - 0.5) for each in thresholds if ((scores >= each) == (scores >= np.float32(found))).all()
    ]
    good = [abs(each - 0.5) for each in thresholds if accuracy(each) >= best - error + 1e-9]
    assert min(same, default=1.0) <= min(good, default=1.0) + 1e-9


def test_one_of_a_few_rows_does_not_move_the_threshold():
    # All are right at .3, all but one at .5.
    probabilities = np.array([*np.linspace(0.02, 0.2, 15), 0.35, *np.linspace(0.8, 0.98, 14)], np.float32)
    assert best_threshold(np.arange(30) >= 15, probabilities) < 0.35
    assert steady_threshold(np.arange(30) >= 15, probabilities) == 0.5


def drawn(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Calibrated predictions."""
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
    others = [evaluate_threshold(threshold, confidence, correct) for threshold in np.unique(confidence)]
    good = [each.rows for each in others if (each.precision_at_least or 0) >= expected]
    assert found.rows == max(good) < len(confidence)


def test_precision_is_reached_on_other_rows():
    found = [choose_threshold(*drawn(1000, seed), 0.9) for seed in range(100)]
    made = [each.abstain_below for each in found if each is not None]
    # Of all rows like these with at least a probability, the middle between it and 1 is correct.
    is_reached = [(1 + below) / 2 >= 0.9 for below in made]
    assert len(made) >= 90 and np.mean(is_reached) >= 0.8


def test_precise_predictions_are_all_used():
    found = choose_threshold(np.full(100, 0.9), np.ones(100, bool), 0.95)
    assert found is not None and (found.abstain_below, found.coverage, found.precision) == (0.0, 1.0, 1.0)


def test_threshold_does_not_split_equal_probabilities():
    confidence = np.array([0.9] * 60 + [0.8] * 60, np.float32)
    correct = np.array([True] * 60 + [True] * 10 + [False] * 50)
    found = choose_threshold(confidence, correct, 0.95)
    assert found is not None and (found.rows, found.abstain_below) == (60, pytest.approx(0.85))
    assert choose_threshold(np.full(100, 0.9), np.arange(100) > 20, 0.95) is None
    # Two adjacent float32 numbers have no middle.
    near = np.where(confidence > 0.85, np.nextafter(np.float32(0.8), np.float32(1)), np.float32(0.8))
    found = choose_threshold(near, correct, 0.95)
    assert found is not None and found.rows == 60


@pytest.mark.parametrize("rows", [0, 1, 20])
def test_few_rows_have_no_threshold(rows):
    assert choose_threshold(np.full(rows, 0.99), np.ones(rows, bool), 0.95) is None
