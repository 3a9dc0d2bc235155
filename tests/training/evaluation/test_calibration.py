import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit, log_softmax, softmax

from training.evaluation.model_calibration import MIN_ROWS, fit_per_label, fit_temperature

ROWS = 4000


def drawn(temperature: float, rows: int = ROWS, classes: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Logits that need to be divided by a temperature, and labels drawn as the divided ones say."""
    rng = np.random.default_rng(3)
    logits = 2 * rng.normal(size=(rows, classes))
    true = (softmax(logits, axis=1).cumsum(axis=1) > rng.random((rows, 1))).argmax(axis=1)
    return logits * temperature, true


def yes_or_no(temperatures, biases, rows: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(4)
    logits = 2 * rng.normal(size=(rows, len(temperatures)))
    true = rng.random(logits.shape) < expit(logits)
    return (logits - np.array(biases)) * np.array(temperatures), true.astype(int)


@pytest.mark.parametrize("temperature", [0.3, 2.0, 3.0])
def test_the_temperature_that_made_the_labels_is_found(temperature):
    found = fit_temperature(*drawn(temperature))
    assert found is not None and found.biases == (0.0,)
    assert found.temperatures[0] == pytest.approx(temperature, rel=0.05)


def test_no_temperature_of_a_grid_is_better():
    logits, true = drawn(1.7, rows=300)
    found = fit_temperature(logits, true)
    assert found is not None

    def loss(temperature):
        picked = log_softmax(logits / temperature, axis=1)[np.arange(len(true)), true]
        return -picked.sum() + np.log(temperature) ** 2 / 2

    grid = np.exp(np.linspace(np.log(0.05), np.log(20), 2000))
    best = min(grid, key=loss)
    assert found.temperatures[0] == pytest.approx(best, rel=0.005)
    assert loss(found.temperatures[0]) <= loss(best) + 1e-6


@given(factor=st.floats(0.5, 3))
def test_logits_times_a_number_get_that_times_the_temperature(factor):
    logits, true = drawn(1.5)
    one, other = fit_temperature(logits, true), fit_temperature(logits * factor, true)
    assert one is not None and other is not None
    assert other.temperatures[0] == pytest.approx(one.temperatures[0] * factor, rel=0.01)


def test_rows_that_are_all_right_do_not_make_a_model_sure_of_everything():
    logits = np.tile([3.0, 0.0, 0.0], (MIN_ROWS, 1))
    found = fit_temperature(logits, np.zeros(MIN_ROWS, int))
    assert found is not None and 0.2 < found.temperatures[0] < 1


def test_too_few_rows_say_nothing():
    logits, true = drawn(3.0, rows=MIN_ROWS)
    assert fit_temperature(logits, true) is not None
    assert fit_temperature(logits[1:], true[1:]) is None
    several, given_ = yes_or_no([3.0, 1.0], [0.0, 0.0], MIN_ROWS - 1)
    assert fit_per_label(several, given_) is None


def test_a_temperature_that_lowers_nothing_is_not_taken():
    # Whatever they are divided by, they say the same.
    assert fit_temperature(np.zeros((ROWS, 3)), np.arange(ROWS) % 3) is None
    assert fit_per_label(np.zeros((ROWS, 1)), np.arange(ROWS)[:, None] % 2) is None


def test_extreme_logits_are_survived():
    logits, true = drawn(1.0, rows=500)
    found = fit_temperature(logits * 1e4, true)
    assert found is not None and found.temperatures[0] == pytest.approx(20, rel=0.01)
    several, expected = yes_or_no([1e4], [0.0])
    each = fit_per_label(several, expected)
    assert each is not None and np.isfinite([*each.temperatures, *each.biases]).all()


def test_each_label_finds_its_own_temperature_and_bias():
    temperatures, biases = [0.5, 1.0, 2.0], [1.0, 0.0, -1.5]
    found = fit_per_label(*yes_or_no(temperatures, biases))
    assert found is not None
    np.testing.assert_allclose(found.temperatures, temperatures, rtol=0.1)
    np.testing.assert_allclose(found.biases, biases, atol=0.15)


def test_a_label_that_no_row_has_stays_near_the_others():
    logits, true = yes_or_no([2.0, 2.0, 2.0], [0.0, 0.0, 0.0])
    true[:, 2] = 0
    logits[:, 2] = -8.0
    found = fit_per_label(logits, true)
    assert found is not None
    assert abs(np.log(found.temperatures[2] / found.temperatures[0])) < 1.0
    assert abs(found.biases[2]) < 1.5


def test_one_label_alone_is_the_best_of_a_grid():
    logits, true = yes_or_no([1.8], [0.7], 400)
    found = fit_per_label(logits, true)
    assert found is not None

    def loss(temperature, bias):
        moved = logits / temperature + bias
        nats = (np.logaddexp(0, moved) - true * moved).sum()
        return nats + (np.log(temperature) ** 2 + bias**2) / 2

    grid = [(t, b) for t in np.linspace(1, 3, 81) for b in np.linspace(-1, 2, 121)]
    best = min(grid, key=lambda point: loss(*point))
    assert found.temperatures[0] == pytest.approx(best[0], abs=0.03)
    assert found.biases[0] == pytest.approx(best[1], abs=0.03)
