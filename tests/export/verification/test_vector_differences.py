import numpy as np
import pytest

from export.verification.differences import text_number, vector_differences, vector_failures

EXPECTED = np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 0.0]], np.float32)


def test_the_numbers_of_a_comparison():
    """By hand: the second vector turned by a right angle, the third the same zeros."""
    given = np.array([[1.0, 0.0], [-0.8, 0.6], [0.0, 0.0]], np.float32)
    found = vector_differences(EXPECTED, given, real=2)
    assert found.max_difference == pytest.approx(1.4)
    assert (found.mean_cosine, found.least_cosine) == (pytest.approx(0.5), pytest.approx(0, abs=1e-7))
    assert (found.worst_row, found.not_finite) == (1, 0)
    same = vector_differences(EXPECTED, EXPECTED, real=3)
    assert (same.max_difference, same.mean_cosine, same.least_cosine) == (0, 1, pytest.approx(1))


def test_what_is_not_finite_has_no_difference():
    given = EXPECTED.copy()
    given[1, 0] = np.nan
    found = vector_differences(EXPECTED, given, real=3)
    assert (found.max_difference, found.not_finite, found.worst_row) == (None, 1, 1)
    assert found.mean_cosine == pytest.approx(2 / 3)
    assert vector_failures("int8", "embed", found) == ["embed: 1 vectors hold NaN or infinity"]


@pytest.mark.parametrize(
    ("quantization", "scale", "angle", "fails"),
    [
        ("none", 1 + 5e-5, 0, ""),
        ("none", 1 + 2e-4, 0, "a vector differs by 2.0e-04, more than 1e-04"),
        ("float16", 1.001, 0, ""),
        ("float16", 1.003, 0, "a vector differs by 3.0e-03, more than 2e-03"),
        ("dynamic", 1, 0.1, ""),
        ("dynamic", 1, 0.2, "the cosine with the run's vectors is 0.9801 on average, less than 0.99"),
        ("int8", 1, 0.1, ""),
        ("int8", 1, 0.2, "the cosine with the run's vectors is 0.9801 on average, less than 0.99"),
    ],
)
def test_bounds_are_those_of_the_rounding(quantization, scale, angle, fails):
    expected = np.array([[1.0, 0.0]] * 4, np.float32)
    given = scale * np.array([[np.cos(angle), np.sin(angle)]] * 4, np.float32)
    reasons = vector_failures(quantization, "v", vector_differences(expected, given, real=4))
    assert reasons == ([f"v: {fails}"] if fails else [])


def test_of_which_text_vectors_are():
    assert [text_number(name, 1) for name in ("vectors", "embed")] == [0, 0]
    assert [text_number(name, 2) for name in ("vectors_a", "embed_query", "vectors_b", "embed")] == [
        0,
        0,
        1,
        1,
    ]
