"""Comparison of a client's predictions with those of the run."""

import dataclasses

import numpy as np
import pytest

from clients.comparison import ClientResult, any_failed, compare, not_run, result_table

EXPECTED = np.array([[0.7, 0.3], [0.2, 0.8], [0.9, 0.1], [0.4, 0.6]], np.float32)
FLIPPED = np.array([[0.7, 0.3], [0.8, 0.2], [0.9, 0.1], [0.4, 0.6]], np.float32)
NAN = np.array([[0.7, 0.3], [np.nan, 0.2], [0.9, 0.1], [0.4, 0.6]], np.float32)


def compare_with_expected(found, thresholds=None, **limits):
    return compare("client", "raw text", EXPECTED, found, thresholds, **limits)


def test_equal_predictions_agree():
    result = compare_with_expected(EXPECTED + np.float32(1e-6))
    assert (result.agreeing, result.rows, result.problem) == (4, 4, "")
    assert 0 < result.difference < 1e-5


@pytest.mark.parametrize(
    ("found", "limits", "words"),
    [
        (FLIPPED, {}, "100% equal predictions, got 3 of 4"),
        (FLIPPED, {"min_agreement": 0.8, "exact_rows": [True, False, True, True]}, "80% equal predictions"),
        (FLIPPED, {"min_agreement": 0.75}, "within 0.0001"),
        (EXPECTED - 0.001, {}, "within 0.0001"),
        (EXPECTED[:3], {}, "expected probabilities [4, 2], got [3, 2]"),
        (NAN, {"min_agreement": 0, "exact_rows": [False] * 4}, "expected finite"),
    ],
)
def test_different_predictions_are_a_problem(found, limits, words):
    result = compare_with_expected(found, **limits)
    assert words in result.problem
    assert any_failed([result], allow_missing=True)


def test_min_agreement_allows_a_few_differences():
    result = compare_with_expected(FLIPPED, min_agreement=0.75, exact_rows=[True, False, True, True])
    assert not result.problem


def test_with_thresholds_all_labels_of_a_text_must_agree():
    # The most probable label of the first text stays, but its second label reaches the threshold too.
    found = np.array([[0.7, 0.36], [0.2, 0.8], [0.9, 0.1], [0.4, 0.6]], np.float32)
    assert compare_with_expected(found, exact_rows=[False] * 4).agreeing == 4
    assert compare_with_expected(found, thresholds=[0.5, 0.35], exact_rows=[False] * 4).agreeing == 3


@pytest.mark.parametrize(("allow_missing", "expected"), [(False, True), (True, False)])
def test_a_missing_client_fails_unless_allowed(allow_missing, expected):
    results = [compare_with_expected(EXPECTED), not_run("other", "no\nsuch package")]
    assert any_failed(results, allow_missing) is expected


def test_agreeing_clients_do_not_fail():
    assert not any_failed([compare_with_expected(EXPECTED)], allow_missing=False)


def test_the_table_shows_every_client_and_problem():
    missing = not_run("browser", "no Chromium is\n installed")
    slow = dataclasses.replace(compare_with_expected(EXPECTED), client="slow", seconds=0.01)
    results = [slow, compare_with_expected(FLIPPED), missing, ClientResult("page", "typed", 4, 4)]
    lines = result_table(results).splitlines()
    assert len({len(line) for line in lines[:6]}) == 1
    assert "4 of 4" in lines[2] and "2.50" in lines[2] and "agrees" in lines[2]
    assert "3 of 4" in lines[3] and "differs" in lines[3]
    assert "not run" in lines[4]
    # The demo page shows labels only.
    assert "nan" not in lines[5]
    assert lines[6].startswith("client: expected")
    assert lines[7] == "browser: not run: no Chromium is installed"
