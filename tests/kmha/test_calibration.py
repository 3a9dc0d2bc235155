import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmha.bundle.bundle import Bundle
from kmha.calibration import Calibration, calibrate
from tests.bundles import (
    PAIRS,
    SENTENCES,
    SEVERAL,
    TAGGERS,
    TEXTS,
    make_bundle,
    make_pair_bundle,
    make_tagger_bundle,
)
from tests.stages import with_stages

WORDS = [sentence.split() for sentence in SENTENCES]
THIRD = Calibration((3.0,), (0.0,))
temperatures = st.floats(0.05, 20)


def logits(bundle, rows) -> np.ndarray:
    """From probabilities, which were made in float32."""
    found = bundle.probabilities(rows).astype(np.float64)
    return np.log(found) - (np.log1p(-found) if bundle.uses_thresholds else 0.0)


def test_a_temperature_does_not_change_the_best_label():
    bundle = make_bundle()
    before, predictions = logits(bundle, TEXTS), bundle.predict(TEXTS)
    calibrate(bundle.model, THIRD)
    after = bundle.predict(TEXTS)
    assert [each["label"] for each in after] == [each["label"] for each in predictions]
    assert all(a["probability"] < b["probability"] for a, b in zip(after, predictions, strict=True))
    expected = before / 3
    expected = np.exp(expected) / np.exp(expected).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(bundle.probabilities(TEXTS), expected, rtol=1e-5)


@pytest.mark.parametrize(("form", "symmetric"), [("cross", False), ("bi", False), ("joint", True)])
def test_each_form_of_matcher_gives_the_calibrated_score(form, symmetric):
    bundle = make_pair_bundle(form=form, symmetric=symmetric)
    before = logits(bundle, PAIRS)
    calibration = Calibration((0.5,), (-0.25,))
    calibrate(bundle.model, calibration)
    np.testing.assert_allclose(logits(bundle, PAIRS), calibration.apply(before), rtol=1e-3, atol=1e-4)


def test_each_of_several_labels_has_its_own_calibration():
    bundle = make_bundle(SEVERAL, multi_label=True)
    before = logits(bundle, TEXTS)
    calibration = Calibration((0.5, 1.0, 2.0, 4.0), (0.0, 1.0, -1.0, 0.5))
    calibrate(bundle.model, calibration)
    np.testing.assert_allclose(logits(bundle, TEXTS), calibration.apply(before), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("thresholds", [[0.3, 0.5, 0.7, 0.9], [0.0, 1.0, math.nextafter(1, 2), -0.5]])
def test_moved_thresholds_give_the_same_labels(thresholds):
    bundle = make_bundle(SEVERAL, multi_label=True, thresholds=thresholds)
    before = [set(each["labels"]) for each in bundle.predict(TEXTS)]
    calibration = Calibration((0.5, 1.1, 2.0, 4.0), (0.0, 1.0, -1.0, 0.5))
    calibrate(bundle.model, calibration)
    bundle.thresholds = calibration.thresholds(thresholds)
    assert [set(each["labels"]) for each in bundle.predict(TEXTS)] == before


@given(
    logit=st.floats(-30, 30),
    threshold=st.floats(0, 1, width=32),
    temperature=temperatures,
    bias=st.floats(-5, 5),
)
def test_an_adjusted_threshold_gives_the_same_decisions(logit, threshold, temperature, bias):
    calibration = Calibration((temperature,), (bias,))
    before = 1 / (1 + math.exp(-logit))
    (moved,) = calibration.apply(np.array([logit]))
    after = 1 / (1 + math.exp(-moved))
    (adjusted,) = calibration.thresholds([threshold])
    # Differences below the resolution of float32 are ignored.
    if abs(before - threshold) > 1e-6 and abs(after - adjusted) > 1e-6:
        assert (after >= adjusted) == (before >= threshold)


@pytest.mark.parametrize(
    ("kind", "temperature"),
    with_stages([("spelt", 0.4), ("spelt", 3.0), ("no scheme", 3.0), ("characters", 0.4)], [("spelt", 0.4)]),
)
def test_the_best_path_and_the_forbidden_tags_do_not_change(kind, temperature):
    bundle = make_tagger_bundle(**TAGGERS[kind])
    before = bundle.tagger.tag(WORDS)
    calibrate(bundle.model, Calibration((temperature,), (0.0,)))
    after = Bundle(bundle.model, bundle.preprocessor, bundle.labels).tagger.tag(WORDS)
    np.testing.assert_array_equal(after.tag_ids, before.tag_ids)
    # Not for each tag: a lower probability of one tag may increase that of the next.
    assert (after.probabilities.max(axis=1).mean() < before.probabilities.max(axis=1).mean()) == (
        temperature > 1
    )
    assert (after.probabilities[before.probabilities == 0] == 0).all()


def test_a_tagger_rejects_calibrations_that_change_its_path():
    bundle = make_tagger_bundle()
    for wrong in (Calibration((2.0,) * 5, (0.0,) * 5), Calibration((2.0,), (1.0,))):
        with pytest.raises(ValueError, match="one temperature and no bias"):
            calibrate(bundle.model, wrong)


@given(first=temperatures, second=temperatures, bias=st.floats(-5, 5), logit=st.floats(-20, 20))
def test_two_calibrations_compose_to_one(first, second, bias, logit):
    one, two = Calibration((first,), (bias,)), Calibration((second,), (-bias,))
    given = np.array([logit])
    np.testing.assert_allclose(two.compose(one).apply(given), two.apply(one.apply(given)), atol=1e-9)


def test_a_calibration_per_label_composes_with_a_common_one():
    each = Calibration((1.0, 2.0), (1.0, 0.0))
    assert each.compose(Calibration((2.0,), (0.5,))) == Calibration((2.0, 4.0), (1.5, 0.25))


def test_a_calibration_is_saved_in_the_bundle(tmp_path):
    bundle = make_bundle()
    assert Calibration.of(bundle.details) == Calibration()
    calibrate(bundle.model, THIRD)
    bundle.details["calibration"] = THIRD.values()
    bundle.save(tmp_path)
    loaded = Bundle.load(tmp_path)
    assert Calibration.of(loaded.details) == THIRD
    np.testing.assert_array_equal(loaded.probabilities(TEXTS), bundle.probabilities(TEXTS))


@pytest.mark.parametrize(
    "value",
    [
        None,
        "1.5",
        {},
        {"temperatures": [2.0]},
        {"temperatures": [], "biases": []},
        {"temperatures": [0.0], "biases": [0.0]},
        {"temperatures": [True], "biases": [0.0]},
        {"temperatures": [float("nan")], "biases": [0.0]},
        {"temperatures": [1.0, 2.0], "biases": [0.0]},
    ],
)
def test_invalid_calibrations_are_ignored(value):
    assert Calibration.of({"calibration": value}) == Calibration()
