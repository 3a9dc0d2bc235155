"""The scale of logits and the factors of both paths: few rows, noise, and gains that are not certain."""

import numpy as np
import pytest
from sklearn.metrics import f1_score

from training.linear.weighing import (
    fit_scale,
    macro_f1_gain,
    query_losses,
    shrunk,
    smoothed_loss,
    trusted_share,
    weigh,
)

LABELS = 3


@pytest.mark.parametrize("several", [False, True])
def test_correct_predictions_of_few_rows_have_no_infinite_scale(several):
    ids = np.arange(12) % LABELS
    margins, targets = (
        2.0 * np.eye(LABELS)[ids] - 1.0,
        np.eye(LABELS, dtype=np.int32)[ids] if several else ids,
    )
    (scale, _), loss = fit_scale(margins, targets)
    assert 1.0 < scale < 5.0
    assert loss > 0.1
    factors = weigh(margins, np.zeros_like(margins), targets)
    assert 1.0 < factors[0] < 5.0


def test_wrong_predictions_of_few_rows_do_not_make_all_logits_zero():
    # Each row is predicted a little wrongly: without a prior the best scale is 0, and each text gets the same label.
    targets = np.arange(12) % LABELS
    wrong = 0.2 * np.eye(LABELS)[(targets + 1) % LABELS]
    (scale, _), _ = fit_scale(wrong, targets)
    assert scale > 0.5
    for other in (np.zeros_like(wrong), 0.01 * wrong):
        factor, _ = weigh(wrong, other, targets)
        assert factor > 0.5


def test_the_better_part_has_the_larger_weight():
    random = np.random.default_rng(0)
    targets = random.integers(0, LABELS, 2_000)
    good = 3.0 * np.eye(LABELS)[targets] + random.normal(size=(2_000, LABELS))
    noise = random.normal(size=(2_000, LABELS))
    first, second = weigh(good, noise, targets)
    assert first > 0.5
    assert second < 0.2
    assert weigh(noise, good, targets) == pytest.approx((second, first), abs=0.01)


def test_a_gain_within_its_error_has_no_share():
    random = np.random.default_rng(0)
    noise = random.normal(size=400)
    noise = (noise - noise.mean()) / noise.std()  # the standard error of the mean is 0.05
    assert trusted_share(noise + 0.05) == pytest.approx(0.0)
    assert trusted_share(noise + 0.1) == pytest.approx(0.75)
    assert trusted_share(noise - 0.2) == 0.0
    assert trusted_share(np.zeros(400)) == 0.0


def test_an_encoder_without_a_certain_gain_leaves_the_linear_path_as_it_is():
    random = np.random.default_rng(0)
    targets = random.integers(0, LABELS, 300)
    good = 3.0 * np.eye(LABELS)[targets] + 2 * random.normal(size=(300, LABELS))
    noise = random.normal(size=(300, LABELS))
    factor, of_encoder = weigh(good, noise, targets)
    assert of_encoder == 0.0
    best = min(np.linspace(0.1, 3, 291), key=lambda value: smoothed_loss(value * good, targets))
    assert factor == pytest.approx(best, abs=0.02)


def test_noise_has_no_certain_gain_with_several_labels():
    added = []
    for seed in range(20):
        random = np.random.default_rng(seed)
        targets = (random.random((24, 4)) < 0.4).astype(np.int32)
        noise, *errors = 2.0 * random.normal(size=(3, 24, 4))
        base, better = (4.0 * targets - 2.0 + each for each in errors)
        assert weigh(base, better, targets, few_rows=True)[1] > 0.1
        added.append(weigh(base, noise, targets, few_rows=True)[1])
    # Half of them without a standard error of the gain.
    assert np.count_nonzero(added) <= 5 and np.mean(added) < 0.02
    assert weigh(base[:9], better[:9], targets[:9], few_rows=True)[1] == 0.0


def test_the_gain_in_macro_f1_and_its_error_are_those_of_resampled_rows():
    random = np.random.default_rng(0)
    targets = (random.random((300, 3)) < 0.4).astype(np.int32)
    wrong = random.random((2, 300, 3)) < np.array([0.3, 0.2])[:, None, None]
    before, after = targets ^ wrong

    def gain(rows):
        scores = (f1_score(targets[rows], each[rows], average="macro") for each in (before, after))
        return -np.subtract(*scores)

    found, error = macro_f1_gain(targets, before, after)
    assert found == pytest.approx(gain(np.arange(300)))
    drawn = [gain(random.integers(0, 300, 300)) for _ in range(200)]
    assert error == pytest.approx(np.std(drawn), rel=0.2)


def test_the_probability_of_the_right_label_must_gain_too():
    # One row in 25 has a large loss. Both paths reduce it, but predict all others with less confidence.
    hopeless = np.arange(500) % 25 < 1
    alone, both = np.array([1.0, 0.0]), np.array([0.5, 0.5])
    cautious = {0.0: np.where(hopeless, 8.0, 0.1), 0.5: np.where(hopeless, 1.5, 0.2)}
    assert trusted_share(cautious[0.0] - cautious[0.5]) > 0.8
    np.testing.assert_array_equal(shrunk(both, alone, lambda factors: cautious[factors[1]]), alone)
    better = {0.0: cautious[0.0], 0.5: np.where(hopeless, 1.5, 0.09)}
    found = shrunk(both, alone, lambda factors: better[factors[1]])
    assert 0.4 < found[1] < 0.5


def test_the_loss_of_a_query_compares_its_candidates():
    scores = np.array([1000.0, 1001.0, 999.0, 3.0, 4.0, 5.0, 2.0])
    is_right = np.array([False, True, True, True, True, False, False])
    # The second query has only right candidates and the third only wrong ones.
    queries = np.array([9, 9, 9, 2, 2, 4, 4])
    exponentials = np.exp(scores[:3] - 1000)
    expected = np.log(exponentials.sum()) - np.mean([1.0, -1.0])
    np.testing.assert_allclose(query_losses(scores, is_right, queries), [expected])


def test_of_rankings_only_what_orders_the_candidates_of_a_query_counts():
    random = np.random.default_rng(0)
    queries = np.repeat(np.arange(200), 5)
    # Candidates differ, and so do the shares of right ones among those of a query.
    of_row, of_query = random.normal(size=1000), 2 * random.normal(size=200)[queries]
    targets = (random.random(1000) < 1 / (1 + np.exp(-2 * of_row - of_query))).astype(np.int64)
    base = np.stack([np.zeros(1000), 0.7 * of_row + random.normal(size=1000)], axis=1)
    of_queries, of_rows = (np.stack([np.zeros(1000), each], axis=1) for each in (of_query, of_row))
    assert weigh(base, of_queries, targets)[1] > 0.5
    assert weigh(base, of_queries, targets, queries)[1] == 0.0
    factors = weigh(base, of_rows, targets, queries)
    assert factors[1] > factors[0] > 0
    # The loss of the rows decides on the scale of the sum.
    logits = factors[0] * base + factors[1] * of_rows
    best = min(np.linspace(0.1, 3, 291), key=lambda value: smoothed_loss(value * logits, targets))
    assert best == pytest.approx(1.0, abs=0.02)
    # Without a query to compare candidates of, the base counts alone.
    factor, added = weigh(base[:2], of_rows[:2], np.array([1, 1]), np.array([3, 3]))
    assert factor > 0 == added
