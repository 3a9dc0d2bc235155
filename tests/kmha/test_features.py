"""The feature contract and the validation of external ids."""

import numpy as np
import pytest

from kmha.errors import InputError
from kmha.features import (
    PADDING_MASK,
    SEGMENT_IDS,
    SIDES,
    TOKEN_IDS,
    input_names,
    text_shapes,
    validate_token_ids,
)


def test_shapes_name_every_feature():
    assert text_shapes(2, 5) == {TOKEN_IDS: (2, 5), SEGMENT_IDS: (2, 5), PADDING_MASK: (2, 5)}
    assert set(text_shapes().values()) == {(None, None)}


def test_names_of_pair_features_have_granularity_feature_and_side():
    assert [input_names(side) for side in SIDES] == [
        ("token_ids_a", "padding_mask_a"),
        ("token_ids_b", "padding_mask_b"),
    ]
    assert input_names("b", "char") == ("char_token_ids_b", "char_padding_mask_b")


@pytest.mark.parametrize("dtype", ["int64", "uint8", "int32"])
def test_good_ids_become_int32(dtype):
    ids = np.array([[0, 9], [3, 4]], dtype)
    found = validate_token_ids(ids, vocabulary_size=10, max_length=2)
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, ids)


def test_empty_batches_are_valid():
    assert validate_token_ids(np.zeros((0, 3), int), 10, 3).shape == (0, 3)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([[0, -1]], r"in \[0, 10\), got -1"),
        ([[3, 10]], r"in \[0, 10\), got 10"),
        ([[2**40, 1]], rf"in \[0, 10\), got {2**40}"),
        ([[1, 2, 3]], "at most 2 long, got length 3"),
        ([1, 2], r"integers \[B, T\], got int64 of shape \(2,\)"),
        ([[1.0, 2.0]], r"integers \[B, T\], got float64"),
        ([[1, 2], [3]], "got rows of different lengths"),
        ([[True, False]], r"integers \[B, T\], got bool"),
    ],
)
def test_bad_ids_are_rejected_in_one_line(ids, message):
    with pytest.raises(InputError, match=message) as refusal:
        validate_token_ids(ids, vocabulary_size=10, max_length=2)
    assert TOKEN_IDS in str(refusal.value) and "\n" not in str(refusal.value)
