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
def test_every_step_against_numpy(decay):
    weight = variable([1.0, -2.0])
    average = WeightAverage([weight], ONE, decay, every=1)
    values = np.random.default_rng(0).normal(size=(30, 2)).astype(np.float32)
    follow(average, weight, values)
    expected = np.array([1.0, -2.0])
    for step, value in enumerate(values, start=1):
        kept = min(decay, (1 + step) / (10 + step))
        expected = kept * expected + (1 - kept) * value
    np.testing.assert_allclose(average.averages[0].numpy(), expected, rtol=1e-5)


def test_every_few_steps_decays_as_much_as_every_step():
    still = variable([1.0])
    average = WeightAverage([still], ONE, decay=0.9, every=4)
    # The weight moves once and stays: both ways then leave 0.9 of the distance a step.
    for step in range(1000, 1012):
        still.assign([0.0])
        average.after_step(step + 1)
    assert float(average.averages[0][0]) == pytest.approx(0.9**12, rel=1e-5)


def test_updates_become_rarer_no_sooner_than_the_average_becomes_slower():
    average = WeightAverage([variable([1.0])], ONE, every=8)
    gaps = {step: average.gap(step) for step in range(1, 200)}
    assert [gaps[step] for step in (1, 15, 16, 31, 32, 63, 64, 199)] == [1, 1, 2, 2, 4, 4, 8, 8]
    # By then the average looks back over a ninth of the steps or more: none is so long that one update stands for all.
    assert all(gap <= max(1, step / 8) for step, gap in gaps.items())


def test_a_short_fit_ends_near_its_last_weights():
    weight = variable([0.0])
    average = WeightAverage([weight], ONE)
    follow(average, weight, [[1.0]] * 48)
    assert 0.99 < float(average.averages[0][0]) <= 1.0


def test_swapping_twice_changes_nothing():
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


def test_the_average_starts_at_the_weights_and_does_not_follow_the_variable():
    weight = variable([4.0])
    average = WeightAverage([weight], ONE)
    weight.assign([5.0])
    assert float(average.averages[0][0]) == 4.0


def test_a_short_fit_too_leaves_its_start():
    weight = variable([1.0])
    average = WeightAverage([weight], ONE, 0.999)
    follow(average, weight, [[0.0]] * 2)
    assert float(average.averages[0][0]) < 0.1
