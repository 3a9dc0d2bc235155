"""Row indices of ragged values, in memory of the values' size."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from kmha.text.ragged import rows_of_values
from kmha.text.sentence_preprocessor import spell_words
from kmha.text.words import split_words


@given(st.lists(st.integers(0, 4), max_size=8))
def test_each_value_has_its_row(lengths):
    splits = tf.constant(np.concatenate([[0], np.cumsum(lengths)]), tf.int64)
    np.testing.assert_array_equal(rows_of_values(splits), np.repeat(np.arange(len(lengths)), lengths))


@pytest.mark.parametrize("cut", [spell_words, lambda texts: split_words(texts).ends.flat_values])
def test_one_long_text_among_many_does_not_make_all_of_them_long(cut):
    # Padded to the longest, the texts would take 160 GB.
    texts = tf.constant([b"word"] * 20_000 + [b"a" * 1_000_000])
    found = cut(texts)
    assert found.shape[0] == 20_001
