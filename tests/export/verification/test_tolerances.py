from dataclasses import replace

import numpy as np
import pytest

from export.verification.tolerances import (
    as_json,
    differences,
    failures,
    text_number,
    vector_differences,
    vector_failures,
)

EXPECTED = np.array([[0.7, 0.3], [0.2, 0.8], [0.51, 0.49], [0.6, 0.4]], "float32")


def test_equal_predictions_pass():
    found = differences(EXPECTED, EXPECTED, 3, None)
    assert found.max_difference == 0 and found.label_agreement == 1 and found.not_finite == 0
    assert failures("none", found, 0.0, 0, True) == []


def test_labels_are_compared_on_real_rows_and_probabilities_on_all():
    other = EXPECTED.copy()
    other[2] = [0.49, 0.51]
    other[3] = [0.1, 0.9]
    found = differences(EXPECTED, other, 3, None)
    assert found.label_agreement == pytest.approx(2 / 3)
    assert found.max_difference == pytest.approx(0.5)
    assert found.worst_row == 3


def test_several_labels_are_compared_one_by_one_and_as_sets():
    other = EXPECTED.copy()
    other[0, 1] = 0.31
    other[1, 0] = 0.26
    found = differences(EXPECTED, other, 4, [0.25, 0.305])
    assert found.label_agreement == 0.75 and found.set_agreement == 0.5
    assert differences(EXPECTED, EXPECTED, 4, None).set_agreement is None


def test_the_metric_counts_with_several_labels():
    """A model that predicts no label agrees on most of many labels."""
    expected = np.zeros((50, 400), "float32")
    expected[:, 0] = 0.9
    found = differences(expected, np.zeros_like(expected), 50, [0.5] * 400)
    assert found.label_agreement == 1 - 1 / 400 and found.set_agreement == 0
    assert failures("dynamic", found, -0.3, 0, True)[-1:] == [
        "expected the metric within 0.005, got a change of -0.3000"
    ]


def test_a_row_with_nan_is_the_worst():
    other = EXPECTED.copy()
    other[1, 1] = np.nan
    other[2] = [1, 0]
    found = differences(EXPECTED, other, 4, None)
    assert found.not_finite == 1 and found.worst_row == 1
    assert found.label_agreement == 0.75
    assert as_json(found)["max_difference"] is None
    for quantization in ("none", "float16", "dynamic", "int8"):
        assert "NaN" in failures(quantization, found, None, None, True)[0]


@pytest.mark.parametrize(
    ("thresholds", "margin", "is_tie"),
    [(None, 0.04, True), (None, 0.06, False), ([0.5, 0.9], 0.02, True), ([0.5, 0.9], 0.03, False)],
)
def test_labels_that_the_run_hardly_prefers_are_near_ties(thresholds, margin, is_tie):
    first = 0.5 + (margin / 2 if thresholds is None else margin)
    expected = np.array([[first, 1 - first]] * 10, np.float32)
    other = expected.copy()
    other[0] = 0.49, 0.51
    found = differences(expected, other, 10, thresholds)
    wrong = 0.1 if thresholds is None else 0.05
    assert found.label_agreement == pytest.approx(1 - wrong)
    assert found.near_ties == pytest.approx(wrong if is_tie else 0)
    assert any("equal labels" in reason for reason in failures("dynamic", found, 0.0, 0, True)) != is_tie
    assert as_json(found)["near_ties"] == found.near_ties


def test_pairs_are_compared_by_their_threshold():
    expected, other = (
        np.array([[0.6], [0.4], [0.7]], "float32"),
        np.array([[0.6], [0.45], [0.7]], "float32"),
    )
    found = differences(expected, other, 3, [0.42])
    assert found.label_agreement == pytest.approx(2 / 3) and found.set_agreement is None
    assert differences(expected, other, 3, [0.5]).label_agreement == 1


def test_graded_scores_differ_relative_to_their_size_and_have_no_labels():
    expected = np.array([[1000.0], [0.1]], "float32")
    found = differences(expected, expected + np.array([[0.09], [0.00005]], "float32"), 2, None, graded=True)
    assert found.max_difference == pytest.approx(9e-5, rel=1e-2) and found.worst_row == 0
    assert found.label_agreement is None and as_json(found)["label_agreement"] is None
    assert failures("none", found, 0.0, 0, True) == []
    far = differences(expected, expected + np.array([[0.0], [0.001]], "float32"), 2, None, graded=True)
    (reason,) = failures("none", far, 0.0, 0, True)
    assert reason == "expected scores relative to max(1, |score|) within 1e-04, got a difference of 1.0e-03"
    assert failures("dynamic", far, 0.004, 0, True) == []
    assert "expected the metric within" in failures("dynamic", far, -0.006, 0, True)[0]


@pytest.mark.parametrize("quantization", ["dynamic", "int8"])
def test_the_deciding_metric_must_be_defined(quantization):
    found = differences(np.ones((2, 1), "float32"), np.ones((2, 1), "float32"), 2, None, graded=True)
    assert "for which the metric is defined" in failures(quantization, found, None, 0, True)[0]
    assert failures("none", found, None, 0, True) == []
    # An export has no labels.
    assert failures(quantization, found, None, 0, True, labeled=False) == []


@pytest.mark.parametrize(
    ("quantization", "difference", "agreement", "change", "passes"),
    [
        ("none", 0.9e-4, 1, 0, True),
        ("none", 1.1e-4, 1, 0, False),
        ("float16", 4.9e-3, 1, 0, True),
        ("float16", 5.1e-3, 1, 0, False),
        ("dynamic", 0.3, 0.99, -0.1, True),
        ("dynamic", 0.001, 0.989, 0, False),
        ("int8", 0.5, 0.99, -0.005, True),
        ("int8", 0.5, 0.989, 0, False),
        ("int8", 0.5, 1, -0.006, False),
        ("int8", 0.5, 1, 0.006, False),
    ],
)
def test_each_quantization_has_its_tolerance(quantization, difference, agreement, change, passes):
    found = differences(EXPECTED, EXPECTED, 4, None)
    found = replace(found, max_difference=difference, label_agreement=agreement)
    assert bool(failures(quantization, found, change, 0, True)) == (not passes)


@pytest.mark.parametrize("quantization", ["dynamic", "int8"])
def test_probabilities_of_8_bits_are_bounded_too(quantization):
    """By hand: 1,000 rows of equal labels; 11 of them are off by .06, or two by .3."""
    expected = np.full((1000, 1), 0.6, np.float32)
    for count, by, reason in (
        (10, 0.06, ""),
        (11, 0.06, "0.0110 of the rows"),
        (2, 0.3, "percentile"),
        (1, 0.3, ""),
    ):
        found = expected.copy()
        found[:count] += by
        found = differences(expected, found, 1000, [0.5])
        assert found.share_off == count / 1000
        reasons = failures(quantization, found, 0.0, 0, True)
        assert [reason in each for each in reasons] == [True] * bool(reason), (count, reasons)


def test_other_ids_or_labels_fail_with_equal_predictions():
    found = differences(EXPECTED, EXPECTED, 4, None)
    assert failures("int8", found, 0.0, 2, True) == [
        "expected the token ids of the run, got others for 2 rows"
    ]
    assert failures("int8", found, 0.0, None, False) == ["expected the label names of the run, got others"]


VECTORS = np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 0.0]], np.float32)


def test_vector_differences_by_hand():
    """By hand: the second vector turned by a right angle, the third the same zeros."""
    given = np.array([[1.0, 0.0], [-0.8, 0.6], [0.0, 0.0]], np.float32)
    found = vector_differences(VECTORS, given, compared=2)
    assert found.max_difference == pytest.approx(1.4)
    assert (found.mean_cosine, found.least_cosine) == (pytest.approx(0.5), pytest.approx(0, abs=1e-7))
    assert (found.worst_row, found.not_finite) == (1, 0)
    same = vector_differences(VECTORS, VECTORS, compared=3)
    assert (same.max_difference, same.mean_cosine, same.least_cosine) == (0, 1, pytest.approx(1))


def test_vectors_with_nan_have_no_difference():
    given = VECTORS.copy()
    given[1, 0] = np.nan
    found = vector_differences(VECTORS, given, compared=3)
    assert (found.max_difference, found.not_finite, found.worst_row) == (None, 1, 1)
    assert found.mean_cosine == pytest.approx(2 / 3)
    assert vector_failures("int8", "embed", found) == [
        "embed: expected finite numbers, got NaN or infinity in 1 vectors"
    ]


@pytest.mark.parametrize(
    ("quantization", "scale", "angle", "fails"),
    [
        ("none", 1 + 5e-5, 0, ""),
        ("none", 1 + 2e-4, 0, "expected numbers within 1e-04, got a difference of 2.0e-04"),
        ("float16", 1.001, 0, ""),
        ("float16", 1.003, 0, "expected numbers within 2e-03, got a difference of 3.0e-03"),
        ("dynamic", 1, 0.1, ""),
        ("dynamic", 1, 0.2, "expected a mean cosine of at least 0.99, got 0.9801"),
        ("int8", 1, 0.1, ""),
        ("int8", 1, 0.2, "expected a mean cosine of at least 0.99, got 0.9801"),
    ],
)
def test_vector_limits_depend_on_the_quantization(quantization, scale, angle, fails):
    expected = np.array([[1.0, 0.0]] * 4, np.float32)
    given = scale * np.array([[np.cos(angle), np.sin(angle)]] * 4, np.float32)
    reasons = vector_failures(quantization, "v", vector_differences(expected, given, compared=4))
    assert reasons == ([f"v: {fails}"] if fails else [])


def test_the_text_of_vectors_by_name():
    assert [text_number(name, 1) for name in ("vectors", "embed")] == [0, 0]
    assert [text_number(name, 2) for name in ("vectors_a", "embed_query", "vectors_b", "embed")] == [
        0,
        0,
        1,
        1,
    ]
