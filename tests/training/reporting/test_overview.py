from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from training.reporting.overview import class_intervals, label_blocks, wilson_interval

Z = 1.959963984540054


def wilson(hits: int, of: int) -> list[float]:
    """The ends of the shares p for which |hits / of - p| is 1.96 standard deviations, from the quadratic equation."""
    roots = np.roots([of + Z**2, -(2 * hits + Z**2), hits**2 / of])
    return sorted(float(root) for root in np.real(roots))


@pytest.mark.parametrize(("hits", "of"), [(0, 3), (1, 1), (7, 7), (3, 20), (480, 500)])
def test_intervals_solve_the_quadratic_equation(hits, of):
    np.testing.assert_allclose(wilson_interval(hits, of), wilson(hits, of), atol=1e-6)


def test_intervals_of_perfect_scores_reach_below_one():
    found = class_intervals(7, 7, 9)
    for ends, value in ((found["precision"], 1.0), (found["recall"], 7 / 9), (found["f1"], 14 / 16)):
        assert ends[0] < value - 0.1 and ends[0] < value <= ends[1] + 1e-12
    assert class_intervals(0, 0, 0) == {"precision": [], "recall": [], "f1": []}


def test_f1_intervals_have_their_nominal_coverage():
    """Of random rows with a known F1, 95 % of the intervals should contain it."""
    rng = np.random.default_rng(0)
    shares = np.array([0.10, 0.03, 0.05, 0.82])  # true and predicted, predicted only, true only, neither
    expected = 2 * shares[0] / (2 * shares[0] + shares[1] + shares[2])
    covered = 0
    for both, predicted, actual, _ in rng.multinomial(150, shares, 200):
        low, high = class_intervals(both, both + predicted, both + actual)["f1"]
        covered += low <= expected <= high
    assert 0.91 <= covered / 200 <= 0.99


def test_scores_without_a_confusion_matrix_are_a_note():
    scores = {"per_class": dict.fromkeys(map(str, range(1_001)), {"f1": 0.5})}
    data: Any = SimpleNamespace(scores=scores, is_multi_label=False, target=None, kind="classify")
    (note,) = label_blocks(data)
    assert "1,001 labels" in str(note)
