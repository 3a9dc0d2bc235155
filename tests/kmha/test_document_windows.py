import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kmha.document_windows import WindowShape, computed_tokens, window_shape_of
from kmha.errors import InputError

# Window length, overlap, and tokens of a text.
DRAWN = st.integers(3, 12).flatmap(lambda length: st.tuples(st.just(length), st.integers(0, length - 3)))


@given(DRAWN, st.integers(2, 60))
def test_every_token_is_in_a_window_and_adjacent_windows_share_the_overlap(drawn, tokens):
    shape = WindowShape(*drawn)
    places = shape.positions(tokens)
    assert len(places) == shape.count(tokens)
    assert {place for window in places for place in window} == set(range(tokens))
    for window in places:
        assert window[0] == 0 and window[-1] == tokens - 1 and len(window) <= shape.length
        # Between [CLS] and [SEP] a window has no gap.
        assert (np.diff(window[1:-1]) == 1).all()
    for one, other in zip(places, places[1:], strict=False):
        assert len(one) == shape.length
        assert len(set(one[1:-1]) & set(other[1:-1])) == shape.overlap
        assert set(other[1:-1]) - set(one)


@given(DRAWN, st.lists(st.integers(1, 80), min_size=1))
def test_computation_grows_with_the_length(drawn, tokens):
    shape, lengths = WindowShape(*drawn), np.sort(tokens)
    computed = shape.computed_tokens(lengths)
    assert computed.tolist() == [shape.computed_tokens(length) for length in lengths.tolist()]
    assert (np.diff(computed) >= 0).all()
    assert (computed[lengths <= shape.length] == lengths[lengths <= shape.length]).all()


@given(DRAWN, st.integers(1, 80))
def test_a_window_is_added_after_each_full_length(drawn, more):
    shape = WindowShape(*drawn)
    longest = shape.length + more
    lengths = shape.full_lengths(longest)
    assert lengths[-1] == longest and lengths == sorted(set(lengths))
    for length in lengths[:-1]:
        assert shape.count(length + 1) == shape.count(length) + 1


@pytest.mark.parametrize(
    ("length", "overlap", "message"),
    [(2, 0, "at least 3 long, got 2"), (8, 6, "below 6, .* got 6"), (8, -1, "got -1")],
)
def test_windows_without_a_stride_are_rejected(length, overlap, message):
    with pytest.raises(InputError, match=message):
        WindowShape(length, overlap)


def test_a_model_without_windows_computes_all_padded_tokens():
    assert window_shape_of(object()) is None
    assert computed_tokens(object(), 9) == 9
