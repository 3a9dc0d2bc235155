"""How answers of clients are judged and told."""

import dataclasses

import numpy as np
import pytest

from clients.outcome import Outcome, compared, failed, not_run, table

WANTED = np.array([[0.7, 0.3], [0.2, 0.8], [0.9, 0.1], [0.4, 0.6]], np.float32)
FLIPPED = np.array([[0.7, 0.3], [0.8, 0.2], [0.9, 0.1], [0.4, 0.6]], np.float32)
NAN = np.array([[0.7, 0.3], [np.nan, 0.2], [0.9, 0.1], [0.4, 0.6]], np.float32)


def evaluated(found, thresholds=None, **limits):
    return compared("client", "raw text", WANTED, found, thresholds, **limits)


def test_the_same_answers_agree():
    outcome = evaluated(WANTED + np.float32(1e-6))
    assert (outcome.agreeing, outcome.rows, outcome.problem) == (4, 4, "")
    assert 0 < outcome.difference < 1e-5


@pytest.mark.parametrize(
    ("found", "limits", "words"),
    [
        (FLIPPED, {}, "100% of the answers"),
        (FLIPPED, {"least_agreement": 0.8, "exact_rows": [True, False, True, True]}, "80% of the answers"),
        (FLIPPED, {"least_agreement": 0.75}, "within 0.0001"),
        (WANTED - 0.001, {}, "within 0.0001"),
        (WANTED[:3], {}, "expected probabilities [4, 2], got [3, 2]"),
        (NAN, {"least_agreement": 0, "exact_rows": [False] * 4}, "not finite"),
    ],
)
def test_other_answers_are_told(found, limits, words):
    outcome = evaluated(found, **limits)
    assert words in outcome.problem
    assert failed([outcome], allow_missing=True)


def test_few_other_answers_may_be_allowed():
    assert not evaluated(FLIPPED, least_agreement=0.75, exact_rows=[True, False, True, True]).problem


def test_with_thresholds_the_answer_is_all_labels_given():
    # The best label of the first text stays, but its second one is given now.
    found = np.array([[0.7, 0.36], [0.2, 0.8], [0.9, 0.1], [0.4, 0.6]], np.float32)
    assert evaluated(found, exact_rows=[False] * 4).agreeing == 4
    assert evaluated(found, thresholds=[0.5, 0.35], exact_rows=[False] * 4).agreeing == 3


@pytest.mark.parametrize(("allow_missing", "expected"), [(False, True), (True, False)])
def test_a_missing_client_fails_unless_allowed(allow_missing, expected):
    outcomes = [evaluated(WANTED), not_run("other", "no\nsuch package")]
    assert failed(outcomes, allow_missing) is expected


def test_all_well_is_no_failure():
    assert not failed([evaluated(WANTED)], allow_missing=False)


def test_the_table_tells_every_client_and_problem():
    missing = not_run("browser", "no Chromium is\n installed")
    slow = dataclasses.replace(evaluated(WANTED), client="slow", seconds=0.01)
    lines = table([slow, evaluated(FLIPPED), missing, Outcome("page", "typed", 4, 4)]).splitlines()
    assert len({len(line) for line in lines[:6]}) == 1
    assert "4 of 4" in lines[2] and "2.50" in lines[2] and "agrees" in lines[2]
    assert "3 of 4" in lines[3] and "differs" in lines[3]
    assert "not run" in lines[4]
    # A page shows labels only.
    assert "nan" not in lines[5]
    assert (
        lines[6].startswith("client: expected") and lines[7] == "browser: not run: no Chromium is installed"
    )
