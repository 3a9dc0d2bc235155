import numpy as np
import pytest
import tensorflow as tf

from export.served_ids import at_compiled_length, checked_in_graph, compiled_lengths, without_filling


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


@pytest.mark.parametrize(("length", "expected"), [(0, 4), (1, 4), (4, 4), (5, 8), (8, 8), (9, 11), (11, 11)])
def test_ids_are_padded_to_the_next_compiled_length(length, expected):
    ids, mask = np.full((2, length), 5, "int32"), np.ones((2, length), "int32")
    wide_ids, wide_mask = at_compiled_length(tf.constant(ids), tf.constant(mask), [4, 8, 11], padding_id=3)
    np.testing.assert_array_equal(wide_ids, np.pad(ids, [(0, 0), (0, expected - length)], constant_values=3))
    np.testing.assert_array_equal(wide_mask, np.pad(mask, [(0, 0), (0, expected - length)]))


def test_only_a_later_start_token_is_filling():
    ids = tf.constant([[2, 7, 3, 2, 2], [9, 2, 8, 3, 2]])
    mask = tf.constant([[1, 1, 1, 1, 1], [1, 1, 1, 0, 1]])
    np.testing.assert_array_equal(without_filling(ids, mask, start_id=2), [[1, 1, 1, 0, 0], [1, 0, 1, 0, 0]])


def test_what_can_be_used_is_passed_on():
    ids, mask = checked_in_graph(tf.constant([[0, 9], [3, 0]]), tf.constant([[1, 4], [1, -1]]), 10, 2)
    np.testing.assert_array_equal(ids, [[0, 9], [3, 0]])
    np.testing.assert_array_equal(mask, [[1, 1], [1, 0]])
    assert mask.dtype == tf.int32
