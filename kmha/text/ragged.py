"""`tf.RaggedTensor` with its constructors, which its type stubs lack, and the rows of its values."""

from typing import Any

import tensorflow as tf

Ragged: Any = tf.RaggedTensor


def rows_of_values(row_splits):
    """The row of each value, int64 [N], in memory of the values' size.

    Differs: `value_rowids` and `tf.repeat` lay out every row as long as the longest, which with one text of 100 kB
    among a thousand words is a gigabyte.

    Args:
        row_splits: int64 [R + 1], where each row begins and where the last one ends, which is N.
    """
    count = row_splits[-1]
    # How many rows end before a value.
    ends = tf.math.unsorted_segment_sum(tf.ones_like(row_splits[1:]), row_splits[1:], count + 1)
    return tf.cumsum(ends[:count])
