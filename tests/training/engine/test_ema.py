import numpy as np
import pytest
import tensorflow as tf

from training.engine.ema import WeightAverage

ONE = tf.distribute.get_strategy()


def variable(value) -> tf.Variable:
    return tf.Variable(tf.constant(value))


def follow(average: WeightAverage, weight: tf.Variable, values) -> None:
    for step, value in enumerate(values, start=1):
        weight.assign(value)
        average.after_step(step)


@pytest.mark.parametrize("decay", [0.5, 0.999])
def test_average_against_numpy(decay):
    weight = variable([1.0, -2.0])
    average = WeightAverage([weight], ONE, decay, every=1)
    values = np.random.default_rng(0).normal(size=(30, 2)).astype(np.float32)
    follow(average, weight, values)
    expected = np.array([1.0, -2.0])
    for step, value in enumerate(values, start=1):
        kept = min(decay, (1 + step) / (10 + step))
        expected = kept * expected + (1 - kept) * value
    np.testing.assert_allclose(average.averages[0].numpy(), expected, rtol=1e-5)


def test_longer_interval_decays_as_much():
    still = variable([1.0])
    average = WeightAverage([still], ONE, decay=0.9, every=4)
    # The weight moves once and stays: both ways then leave 0.9 of the distance a step.
    for step in range(1000, 1012):
        still.assign([0.0])
        average.after_step(step + 1)
    assert float(average.averages[0][0]) == pytest.approx(0.9**12, rel=1e-5)


def test_update_interval_grows_with_the_steps():
    average = WeightAverage([variable([1.0])], ONE, every=8)
    intervals = {step: average.update_interval(step) for step in range(1, 200)}
    assert [intervals[step] for step in (1, 15, 16, 31, 32, 63, 64, 199)] == [1, 1, 2, 2, 4, 4, 8, 8]
    # The average then covers at least a ninth of the steps: no single update dominates it.
    assert all(gap <= max(1, step / 8) for step, gap in intervals.items())


def test_average_of_a_short_fit_is_near_the_last_weights():
    weight = variable([0.0])
    average = WeightAverage([weight], ONE)
    follow(average, weight, [[1.0]] * 48)
    assert 0.99 < float(average.averages[0][0]) <= 1.0


def test_swapping_twice_restores_the_weights():
    weights = [variable([1.0, 2.0]), variable([[3.0]])]
    average = WeightAverage(weights, ONE, 0.5, every=1)
    follow(average, weights[0], [[5.0, 6.0]])
    live, kept = [w.numpy() for w in weights], [a.numpy() for a in average.averages]
    average.swap()
    for weight, old in zip(weights, kept, strict=True):
        np.testing.assert_array_equal(weight.numpy(), old)
    for mean, old in zip(average.averages, live, strict=True):
        np.testing.assert_array_equal(mean.numpy(), old)
    average.swap()
    for weight, old in zip(weights, live, strict=True):
        np.testing.assert_array_equal(weight.numpy(), old)


def test_average_starts_at_a_copy_of_the_weights():
    weight = variable([4.0])
    average = WeightAverage([weight], ONE)
    weight.assign([5.0])
    assert float(average.averages[0][0]) == 4.0


def test_average_of_a_short_fit_leaves_the_initial_weights():
    weight = variable([1.0])
    average = WeightAverage([weight], ONE, 0.999)
    follow(average, weight, [[0.0]] * 2)
    assert float(average.averages[0][0]) < 0.1
