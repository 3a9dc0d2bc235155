import dataclasses
import math
from typing import Annotated

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmha.errors import InputError
from training.cli.bounds import Count, Probability, Range, check_ranges


@dataclasses.dataclass(frozen=True)
class Part:
    some_share: Probability = 0.5
    free: float = math.nan


@dataclasses.dataclass(frozen=True)
class Whole:
    rows: Count = 1
    even_lower: Annotated[float, "words beside", Range(above=-2, at_most=2)] = 0.0
    name: str = ""
    part: Part = dataclasses.field(default_factory=Part)


def test_numbers_in_their_range_pass():
    check_ranges(Whole())
    check_ranges(Whole(rows=10**12, even_lower=2, part=Part(some_share=0)))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (Whole(rows=0), "--rows: expected at least 1, got 0"),
        (Whole(even_lower=-2), "--even-lower: expected above -2 and at most 2, got -2"),
        (Whole(even_lower=math.inf), "--even-lower: expected above -2 and at most 2, got inf"),
        (Whole(part=Part(some_share=1.0)), "--part.some-share: expected at least 0 and below 1, got 1.0"),
        (
            Whole(part=Part(some_share=math.nan)),
            "--part.some-share: expected at least 0 and below 1, got nan",
        ),
    ],
)
def test_the_flag_the_range_and_the_number_are_named(config, message):
    with pytest.raises(InputError) as caught:
        check_ranges(config)
    assert str(caught.value) == message


ends = st.none() | st.integers(-3, 3)


@given(low=ends, above=ends, high=ends, below=ends, number=st.integers(-4, 4))
def test_each_bound_is_checked(low, above, high, below, number):
    expected = (
        (low is None or number >= low)
        and (above is None or number > above)
        and (high is None or number <= high)
        and (below is None or number < below)
    )
    assert Range(low, above, high, below).holds(number) == expected


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_no_range_contains_nan_or_infinity(number):
    assert not Range().holds(number)
    assert str(Range()) == "a finite number"
