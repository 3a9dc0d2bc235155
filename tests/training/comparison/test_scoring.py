import numpy as np
import pytest

from training.comparison.scoring import paired_difference, reference_of
from training.metrics.bootstrap import Resampling, bootstrap_interval


def test_differences_are_paired():
    rng = np.random.default_rng(0)
    right = rng.random(400) < 0.8
    other = np.where(rng.random(400) < 0.95, right, ~right)
    found = paired_difference(right, other)
    assert found["value"] == pytest.approx(right.mean() - other.mean())
    by_rows = bootstrap_interval(lambda a, b: a.mean() - b.mean(), right, other, resampling=Resampling(1))
    np.testing.assert_allclose(found["interval"], by_rows, atol=0.006)
    # Unpaired intervals would be about eight points wide.
    assert found["interval"][1] - found["interval"][0] < 0.06


def test_equal_predictions_have_no_difference():
    right = np.array([True, False, True])
    assert paired_difference(right, right) == {"value": 0.0, "interval": [0.0, 0.0]}


def test_the_reference_is_attention_or_the_best():
    assert reference_of({"cnn": 0.9, "heads": 0.1}) == "heads"
    assert reference_of({"cnn": 0.2, "linear": 0.9, "averages": 0.3}) == "linear"
