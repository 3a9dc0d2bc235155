import json
import math
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score

from training.metrics.bootstrap import (
    Resampling,
    bootstrap_interval,
    multi_label_resampled,
    single_label_resampled,
)

_ZERO: Any = 0  # the stubs of scikit-learn know only strings


def _predictions(rows, classes, share_right, seed=0):
    generator = np.random.default_rng(seed)
    true_ids = generator.integers(classes, size=rows)
    guesses = generator.integers(classes, size=rows)
    return true_ids, np.where(generator.random(rows) < share_right, true_ids, guesses)


def _binomial_tail(successes, trials, probability):
    """Probability of at most `successes`, summed exactly."""
    return sum(
        math.comb(trials, k) * probability**k * (1 - probability) ** (trials - k)
        for k in range(successes + 1)
    )


def _bisect(expected, function):
    """Finds where the falling function crosses `expected` on [0, 1]."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) > expected else (low, middle)
    return low


@pytest.mark.parametrize(("right", "rows"), [(450, 500), (120, 200)])
def test_accuracy_interval_agrees_with_the_binomial_interval(right, rows):
    # Clopper-Pearson: the accuracies at which so few, or so many, correct predictions have probability .025.
    lower = _bisect(0.975, lambda p: _binomial_tail(right - 1, rows, p))
    upper = _bisect(0.025, lambda p: _binomial_tail(right, rows, p))
    interval = single_label_resampled(
        np.zeros(rows, int), (np.arange(rows) >= right).astype(int)
    ).intervals()["accuracy"]
    assert interval == pytest.approx([lower, upper], abs=0.012)


def test_single_label_intervals_equal_resampled_rows():
    true_ids, predictions = _predictions(150, 4, 0.6)

    def macro_f1(true_ids, predictions):
        return f1_score(true_ids, predictions, average="macro", zero_division=_ZERO)

    fast = single_label_resampled(true_ids, predictions).intervals(Resampling(resamples=2000))
    assert fast["macro_f1"] == pytest.approx(
        bootstrap_interval(macro_f1, true_ids, predictions, resampling=Resampling(1, 300)), abs=0.03
    )
    assert fast["accuracy"] == pytest.approx(
        bootstrap_interval(accuracy_score, true_ids, predictions, resampling=Resampling(1, 300)), abs=0.03
    )


def test_multi_label_intervals_equal_resampled_rows():
    generator = np.random.default_rng(2)
    true = (generator.random((150, 3)) < [0.5, 0.3, 0.2]).astype(np.int8)
    predictions = np.where(generator.random((150, 3)) < 0.8, true, 1 - true)
    fast = multi_label_resampled(true, predictions).intervals(Resampling(resamples=2000))
    for average in ("micro", "macro"):
        slow = bootstrap_interval(
            lambda true, predictions, average=average: f1_score(
                true, predictions, average=average, zero_division=_ZERO
            ),
            true,
            predictions,
            resampling=Resampling(resamples=300),
        )
        assert fast[f"{average}_f1"] == pytest.approx(slow, abs=0.03)
    assert set(fast) == {"accuracy", "micro_f1", "macro_f1"}


def test_any_statistic_and_any_arrays():
    values = np.random.default_rng(0).normal(size=400)
    lower, upper = bootstrap_interval(lambda values: float(values.mean()), values)
    half_width = 1.96 * values.std() / 20
    assert (lower, upper) == pytest.approx((values.mean() - half_width, values.mean() + half_width), abs=0.02)
    paired = bootstrap_interval(lambda left, right: float((left - right).mean()), values, values + 1.0)
    assert paired == pytest.approx((-1.0, -1.0))


def test_more_rows_and_lower_levels_narrow_the_interval():
    def width(rows, level):
        lower, upper = single_label_resampled(*_predictions(rows, 3, 0.7)).intervals(Resampling(level=level))[
            "accuracy"
        ]
        return upper - lower

    assert width(2000, 0.95) < width(200, 0.95)
    assert width(200, 0.5) < width(200, 0.95)


def test_seed_changes_the_interval():
    rows = _predictions(100, 3, 0.5)
    assert single_label_resampled(*rows).intervals(Resampling(3)) == single_label_resampled(*rows).intervals(
        Resampling(3)
    )
    assert single_label_resampled(*rows).intervals(Resampling(3)) != single_label_resampled(*rows).intervals(
        Resampling(4)
    )


def test_perfect_predictions_have_no_spread():
    true_ids, _ = _predictions(60, 3, 1.0)
    intervals = single_label_resampled(true_ids, true_ids).intervals()
    assert intervals == {"accuracy": [1.0, 1.0], "macro_f1": [1.0, 1.0]}
    assert json.loads(json.dumps(intervals)) == intervals


def test_no_rows_give_no_interval():
    nothing = np.zeros(0, int)
    assert single_label_resampled(nothing, nothing).intervals() == {}
    assert multi_label_resampled(np.zeros((0, 2)), np.zeros((0, 2))).intervals() == {}


@pytest.mark.parametrize("arrays", [(), (np.zeros(0),), (np.zeros(2), np.zeros(3))])
def test_unequal_or_missing_rows_raise(arrays):
    with pytest.raises(ValueError, match="one length above 0"):
        bootstrap_interval(lambda *_: 0.0, *arrays)
