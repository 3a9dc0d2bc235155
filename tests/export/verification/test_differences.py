import numpy as np
import pytest

from export.verification.differences import as_json, differences, failures

EXPECTED = np.array([[0.7, 0.3], [0.2, 0.8], [0.51, 0.49], [0.6, 0.4]], "float32")


def test_equal_answers():
    found = differences(EXPECTED, EXPECTED, 3, None)
    assert found.max_difference == 0 and found.label_agreement == 1 and found.not_finite == 0
    assert failures("none", found, 0.0, 0, True) == []


def test_labels_are_compared_on_real_rows_and_probabilities_on_all():
    answers = EXPECTED.copy()
    answers[2] = [0.49, 0.51]
    answers[3] = [0.1, 0.9]
    found = differences(EXPECTED, answers, 3, None)
    assert found.label_agreement == pytest.approx(2 / 3)
    assert found.max_difference == pytest.approx(0.5)
    assert found.worst_row == 3


def test_several_labels_are_compared_one_by_one_and_as_sets():
    answers = EXPECTED.copy()
    answers[0, 1] = 0.31
    answers[1, 0] = 0.26
    found = differences(EXPECTED, answers, 4, [0.25, 0.305])
    assert found.label_agreement == 0.75 and found.set_agreement == 0.5
    assert differences(EXPECTED, EXPECTED, 4, None).set_agreement is None


def test_of_several_labels_the_metric_counts_too():
    """A copy that gives no label at all agrees on most of many labels."""
    expected = np.zeros((50, 400), "float32")
    expected[:, 0] = 0.9
    found = differences(expected, np.zeros_like(expected), 50, [0.5] * 400)
    assert found.label_agreement == 1 - 1 / 400 and found.set_agreement == 0
    assert failures("dynamic", found, -0.3, 0, True) == ["the metric changes by -0.3000, more than 0.005"]


def test_a_row_that_is_no_number_is_the_worst():
    answers = EXPECTED.copy()
    answers[1, 1] = np.nan
    answers[2] = [1, 0]
    found = differences(EXPECTED, answers, 4, None)
    assert found.not_finite == 1 and found.worst_row == 1
    assert found.label_agreement == 0.75
    assert as_json(found)["max_difference"] is None
    for quantization in ("none", "float16", "dynamic", "int8"):
        assert "NaN" in failures(quantization, found, None, None, True)[0]


def test_pairs_are_compared_by_their_threshold():
    expected, answers = (
        np.array([[0.6], [0.4], [0.7]], "float32"),
        np.array([[0.6], [0.45], [0.7]], "float32"),
    )
    found = differences(expected, answers, 3, [0.42])
    assert found.label_agreement == pytest.approx(2 / 3) and found.set_agreement is None
    assert differences(expected, answers, 3, [0.5]).label_agreement == 1


def test_graded_scores_differ_relative_to_their_size_and_have_no_labels():
    expected = np.array([[1000.0], [0.1]], "float32")
    found = differences(expected, expected + np.array([[0.09], [0.00005]], "float32"), 2, None, graded=True)
    assert found.max_difference == pytest.approx(9e-5, rel=1e-2) and found.worst_row == 0
    assert found.label_agreement is None and as_json(found)["label_agreement"] is None
    assert failures("none", found, 0.0, 0, True) == []
    far = differences(expected, expected + np.array([[0.0], [0.001]], "float32"), 2, None, graded=True)
    (reason,) = failures("none", far, 0.0, 0, True)
    assert reason == "a score differs, relative to max(1, |score|), by 1.0e-03, more than 1e-04"
    assert failures("dynamic", far, 0.004, 0, True) == []
    assert "metric changes" in failures("dynamic", far, -0.006, 0, True)[0]


@pytest.mark.parametrize("quantization", ["dynamic", "int8"])
def test_a_metric_that_is_needed_must_be_defined(quantization):
    found = differences(np.ones((2, 1), "float32"), np.ones((2, 1), "float32"), 2, None, graded=True)
    assert "not defined for these rows" in failures(quantization, found, None, 0, True)[0]
    assert failures("none", found, None, 0, True) == []


@pytest.mark.parametrize(
    ("quantization", "difference", "agreement", "change", "passes"),
    [
        ("none", 0.9e-4, 1, 0, True),
        ("none", 1.1e-4, 1, 0, False),
        ("float16", 1.9e-3, 1, 0, True),
        ("float16", 2.1e-3, 1, 0, False),
        ("dynamic", 0.3, 0.99, -0.1, True),
        ("dynamic", 0.001, 0.989, 0, False),
        ("int8", 0.5, 0.9, -0.005, True),
        ("int8", 0.5, 0.9, -0.006, False),
        ("int8", 0.5, 0.9, 0.006, False),
    ],
)
def test_each_kind_has_its_tolerance(quantization, difference, agreement, change, passes):
    found = differences(EXPECTED, EXPECTED, 4, None)
    found = type(found)(difference, 0, agreement, None, 0)
    assert bool(failures(quantization, found, change, 0, True)) == (not passes)


def test_other_ids_and_other_labels_fail_whatever_the_answers():
    found = differences(EXPECTED, EXPECTED, 4, None)
    assert failures("int8", found, 0.0, 2, True) == ["2 rows have other token ids"]
    assert failures("int8", found, 0.0, None, False) == ["the names of its labels are not the bundle's"]
