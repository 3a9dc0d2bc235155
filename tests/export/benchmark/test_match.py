import pytest
from hypothesis import given
from hypothesis import strategies as st

from export.benchmark.match import common_length, spread


@pytest.mark.parametrize(
    ("lengths", "length"),
    [
        ([None, None], 40),
        ([None, [16]], 16),
        ([[16, 32], None, [32, 64]], 32),
        ([[16, 32, 64], [16, 32]], 32),
        ([[16], [32]], None),
    ],
)
def test_ids_have_the_longest_length_that_all_take(lengths, length):
    assert common_length(lengths, defaults=40) == length


@given(st.lists(st.text(), max_size=30), st.integers(0, 40))
def test_texts_are_taken_from_all_over_the_file(texts, most):
    numbered = [f"{number} {text}" for number, text in enumerate(texts)]
    taken = spread(numbered, most)
    assert len(taken) == len(set(taken)) == min(most or len(texts), len(texts))
    assert taken == sorted(taken, key=numbered.index)
    if len(taken) > 1:
        assert (taken[0], taken[-1]) == (numbered[0], numbered[-1])
