"""Splits raw texts into words in the graph, by a table of character classes.

A word is a run of letters, digits and underscores. Every other visible character is a word of its own, and so is each
character of a script that is written without spaces. An apostrophe between two letters and a period or comma between
two digits belong to the word around them, an accent to the character before it. White space, control and format
characters belong to no word.
"""

import functools
from typing import Any, Literal, NamedTuple

import tensorflow as tf

from kmha.text.character_classes import (
    APOSTROPHE,
    DIGIT,
    LETTER,
    MARK,
    POINT,
    SPACE,
    TABLE_SIZE,
    character_classes,
)

# The type stubs of tf.RaggedTensor lack its constructors.
Ragged: Any = tf.RaggedTensor


def rows_of_values(row_splits):
    """The row index of each value, int64 [N], in memory of O(N), from the splits of R rows, int64 [R + 1].

    Differs: `value_rowids` and `tf.repeat` pad every row to the longest, which takes a gigabyte for one text of 100 kB
        among a thousand words.
    """
    count = row_splits[-1]
    # The number of rows that end before each value.
    ends = tf.math.unsorted_segment_sum(tf.ones_like(row_splits[1:]), row_splits[1:], count + 1)
    return tf.cumsum(ends[:count])


Split = Literal["words", "characters"]


class Words(NamedTuple):
    """The words of texts."""

    words: tf.RaggedTensor  # ragged string [B, None]
    firsts: tf.RaggedTensor  # start of each word in characters of its text, ragged int32 [B, None]
    ends: tf.RaggedTensor  # end (exclusive) of each word, ragged int32 [B, None]


def split_words(texts, split: Split = "words") -> Words:
    """Splits texts, string [B] of valid UTF-8, into words, or into visible characters."""
    characters = tf.strings.unicode_decode(texts, "UTF-8")
    code_points, rows = characters.flat_values, rows_of_values(characters.row_splits)
    classes = tf.gather(character_classes(), tf.minimum(code_points, TABLE_SIZE))
    # A space after each text separates adjacent texts.
    place = tf.range(tf.size(classes, tf.int64)) + rows
    count = tf.size(classes, tf.int64) + characters.nrows()
    classes = tf.cast(tf.scatter_nd(place[:, None], tf.cast(classes, tf.int32), [count]), tf.int32)
    visible = classes != SPACE
    starts = visible & tf.logical_not(_continues_word(classes, split))
    lasts = visible & (_after(starts, False) | tf.logical_not(_after(visible, False)))
    first = tf.where(tf.gather(starts, place))[:, 0]
    end = tf.where(tf.gather(lasts, place))[:, 0] + 1
    characters_of_words = Ragged.from_row_lengths(
        tf.gather(code_points, tf.ragged.range(first, end).flat_values), end - first, validate=False
    )
    word_rows = tf.gather(rows, first)
    begin = tf.gather(characters.row_splits, word_rows)

    def by_text(values):
        return Ragged.from_value_rowids(values, word_rows, characters.nrows(), validate=False)

    return Words(
        by_text(tf.strings.unicode_encode(characters_of_words, "UTF-8")),
        by_text(tf.cast(first - begin, tf.int32)),
        by_text(tf.cast(end - begin, tf.int32)),
    )


def _continues_word(classes, split: Split):
    """Whether each character belongs to the word of the previous one, bool [N], from classes int32 [N]."""
    before, after = _before(classes, SPACE), _after(classes, SPACE)
    accent = (classes == MARK) & (before != SPACE)
    if split == "characters":
        return accent
    word = (classes == LETTER) | (classes == DIGIT) | (classes == MARK)
    word |= (classes == APOSTROPHE) & ((before == LETTER) | (before == MARK)) & (after == LETTER)
    word |= (classes == POINT) & (before == DIGIT) & (after == DIGIT)
    return accent | (word & _before(word, False))


def _before(values, edge):
    return tf.concat([[edge], values[:-1]], 0)


def _after(values, edge):
    return tf.concat([values[1:], [edge]], 0)


@functools.cache
def _bounds_function(split: Split):
    signature = [tf.TensorSpec([None], tf.string)]
    return tf.function(lambda texts: split_words(texts, split), input_signature=signature, autograph=False)


def word_bounds(text: str, split: Split = "words") -> list[tuple[int, int]]:
    """Start and end (exclusive) of each word of a text, in characters."""
    found = _bounds_function(split)([text.encode("utf-8", "replace")])
    return list(zip(found.firsts[0].numpy().tolist(), found.ends[0].numpy().tolist(), strict=True))
