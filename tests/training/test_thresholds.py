from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score

from training.thresholds import ENOUGH_POSITIVES, best_thresholds

_ZERO: Any = 0  # the stubs of scikit-learn know only strings


def _f1(true, scores, threshold):
    return f1_score(true, scores >= np.float32(threshold), zero_division=_ZERO)


def _best_f1_by_trying(true, scores):
    return max(_f1(true, scores, threshold) for threshold in scores)


def _rows(seed, rows, labels, decimals):
    """Rows in which each label has enough positives; rounding makes probabilities tie."""
    generator = np.random.default_rng(seed)
    true = generator.integers(2, size=(rows, labels))
    true[:ENOUGH_POSITIVES] = 1
    probabilities = np.clip(0.2 * true + 0.8 * generator.random((rows, labels)), 0, 1)
    return true, probabilities.round(decimals).astype(np.float32)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    rows=st.integers(ENOUGH_POSITIVES, 30),
    labels=st.integers(1, 4),
    decimals=st.integers(0, 7),
)
def test_no_threshold_is_better_on_the_given_rows(seed, rows, labels, decimals):
    true, probabilities = _rows(seed, rows, labels, decimals)
    thresholds = best_thresholds(true, probabilities)
    assert thresholds.dtype == np.float32 and thresholds.shape == (labels,)
    for label in range(labels):
        reached = _f1(true[:, label], probabilities[:, label], thresholds[label])
        assert reached == pytest.approx(_best_f1_by_trying(true[:, label], probabilities[:, label]))
        assert reached >= _f1(true[:, label], probabilities[:, label], 0.5)


def test_threshold_stands_midway():
    true = np.repeat([[1], [0]], ENOUGH_POSITIVES, axis=0)
    probabilities = np.repeat([[0.8], [0.2]], ENOUGH_POSITIVES, axis=0)
    assert best_thresholds(true, probabilities)[0] == pytest.approx(0.5)


def test_adjacent_floats_are_still_told_apart():
    lower = np.float32(0.3)
    upper = np.nextafter(lower, np.float32(1))
    for low, high in ((lower, upper), (upper, np.nextafter(upper, np.float32(1)))):
        true = np.repeat([[1], [0]], ENOUGH_POSITIVES, axis=0)
        probabilities = np.repeat([[high], [low]], ENOUGH_POSITIVES, axis=0)
        assert best_thresholds(true, probabilities)[0] == high


@pytest.mark.parametrize("lowest", [0.0, 0.4, -3.0])
def test_a_label_that_always_holds_is_always_answered(lowest):
    scores = np.linspace(lowest, lowest + 1, 12, dtype=np.float32)[:, None]
    threshold = best_thresholds(np.ones((12, 1)), scores)[0]
    assert (scores >= threshold).all()
    assert threshold >= 0 or lowest < 0


def test_scores_outside_zero_and_one_are_welcome():
    true, probabilities = _rows(3, 40, 2, 7)
    margins = 20 * probabilities - 10
    assert best_thresholds(true, margins) == pytest.approx(
        20 * best_thresholds(true, probabilities) - 10, abs=1e-4
    )


def test_labels_without_positives_get_the_threshold_shared_by_all():
    true, probabilities = _rows(5, 40, 3, 7)
    true[:, 2] = 0
    shared = best_thresholds(true[:, :2].reshape(-1, 1), probabilities[:, :2].reshape(-1, 1))
    silent = np.zeros((40, 1))
    thresholds = best_thresholds(np.hstack([true[:, :2], silent]), np.hstack([probabilities[:, :2], silent]))
    assert thresholds[2] == pytest.approx(shared[0])
    # The pooled decisions cannot be beaten by any one threshold.
    pooled = best_thresholds(true, probabilities)[2]
    assert _f1(true.ravel(), probabilities.ravel(), pooled) == pytest.approx(
        _best_f1_by_trying(true.ravel(), probabilities.ravel())
    )


def test_few_positives_move_gradually_from_shared_to_own():
    generator = np.random.default_rng(0)
    common = generator.integers(2, size=200)
    thresholds = []
    for positives in range(ENOUGH_POSITIVES + 1):
        rare_scores = np.where(np.arange(200) < positives, 0.2, 0.05)
        probabilities = np.stack([np.where(common, 0.9, 0.5), rare_scores], axis=1)
        true = np.stack([common, np.arange(200) < positives], axis=1)
        thresholds.append(best_thresholds(true, probabilities)[1])
    assert thresholds[0] == pytest.approx(0.7)
    assert thresholds[-1] == pytest.approx(0.125)
    assert (np.diff(thresholds) < 0).all()


def test_without_any_positive_the_default_stands():
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
def test_arrays_that_do_not_fit_are_refused(true, probabilities, message):
    with pytest.raises(ValueError, match=message):
        best_thresholds(true, probabilities)
