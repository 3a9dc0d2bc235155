import numpy as np
import pytest
import tensorflow as tf

from export.savedmodel.input_checks import (
    check_inputs,
    check_token_ids,
    compiled_lengths,
    compiled_shapes,
    mask_server_padding,
    pad_to_compiled_length,
)
from tests.bundles import make_pair_bundle, one_label_bundle, pair_bundle


@pytest.mark.parametrize(
    ("longest", "lengths"),
    [
        (3, [3]),
        (16, [16]),
        (17, [16, 17]),
        (24, [16, 24]),
        (128, [16, 32, 64, 128]),
        (100, [16, 32, 64, 100]),
    ],
)
def test_compiled_lengths_are_few_and_reach_the_longest(longest, lengths):
    assert compiled_lengths(longest) == lengths


def inputs(bundle, *lengths) -> tuple[list, list]:
    """The texts that a bundle's model reads, and ids and masks of so many tokens."""
    given = []
    for length in lengths:
        given += [tf.fill([2, length], 5), tf.ones([2, length], tf.int32)]
    return list(bundle.preprocessor.inputs), given


@pytest.mark.parametrize(("length", "expected"), [(0, 16), (1, 16), (16, 16), (17, 24), (24, 24)])
def test_ids_are_padded_to_the_next_compiled_length(length, expected):
    bundle = one_label_bundle()
    declared, given = inputs(bundle, length)
    ids, mask = pad_to_compiled_length(declared, given)
    missing = [(0, 0), (0, expected - length)]
    padding = bundle.preprocessor.padding_id
    np.testing.assert_array_equal(ids, np.pad(given[0], missing, constant_values=padding))
    np.testing.assert_array_equal(mask, np.pad(given[1], missing))


def test_compiled_lengths_of_a_pair_grow_together():
    bundle = make_pair_bundle(("char", "word"))
    bundle.preprocessor.parts[1].max_length = 16
    shapes = compiled_shapes(bundle.preprocessor.inputs)
    assert shapes == [[16, 16, 16, 16], [24, 24, 16, 16]]
    padded = pad_to_compiled_length(*inputs(bundle, 3, 17, 5, 2))
    assert [ids.shape[1] for ids in padded[::2]] == [24, 24, 16, 16]
    assert [mask.numpy().sum() for mask in padded[1::2]] == [6, 34, 10, 4]


def test_texts_with_different_numbers_of_rows_are_rejected_by_name():
    declared, given = inputs(pair_bundle(), 4, 5)
    given[2:] = [each[:1] for each in given[2:]]
    message = r"token_ids_b must have as many rows as token_ids_a,\] \[2\] \[got\] \[1\]"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        tf.function(lambda: check_inputs(declared, given))()


def test_only_a_later_start_token_is_padding():
    ids = tf.constant([[2, 7, 3, 2, 2], [9, 2, 8, 3, 2]])
    mask = tf.constant([[1, 1, 1, 1, 1], [1, 1, 1, 0, 1]])
    np.testing.assert_array_equal(
        mask_server_padding(ids, mask, start_id=2), [[1, 1, 1, 0, 0], [1, 0, 1, 0, 0]]
    )


def test_valid_inputs_are_not_changed():
    ids, mask = check_token_ids(tf.constant([[0, 9], [3, 0]]), tf.constant([[1, 4], [1, -1]]), 10, 2)
    np.testing.assert_array_equal(ids, [[0, 9], [3, 0]])
    np.testing.assert_array_equal(mask, [[1, 1], [1, 0]])
    assert mask.dtype == tf.int32
