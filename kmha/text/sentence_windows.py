"""Long sentences in windows: each word is tagged in the window in which it has the most words around it."""

from typing import Any, NamedTuple

import tensorflow as tf

from kmha.text.ragged import rows_of_values


class Windows(NamedTuple):
    """Sentences cut into windows, [V] of them, in the order of the sentences.

    Attributes:
        sequences: Token ids with special tokens, ragged int32 [V, None].
        words: Number of each word among all words of all sentences, ragged int64 [V, None]; those to tag come first.
        starts: Place of each word's first token in the sequence, ragged int32 [V, None].
        counts: How many words of each window to tag, int64 [V]. Every word is tagged in exactly one window.
        sentences: Which sentence each window is part of, int64 [V]; each sentence has one or more.
    """

    sequences: Any
    words: Any
    starts: Any
    counts: Any
    sentences: Any


def max_word_tokens(tokens: int) -> int:
    """Tokens that a word may have so that windows of `tokens` tokens, half a window apart, hold each word whole."""
    return tokens // 2


def split_windows(pieces, word_splits, tokens: int, start_id: int, end_id: int) -> Windows:
    """Cuts sentences into windows, half a window apart.

    Args:
        pieces: Token ids of each word of all sentences, ragged int32 [N, None], from 1 to `longest_word` a word.
        word_splits: int64 [B + 1], where each sentence's words begin among them and where the last one's end.
        tokens: Most tokens of a window, special tokens not counted; at least 2.
        start_id: Stands before each window.
        end_id: Stands after each window.
    """
    step = tokens // 2
    ends = pieces.row_splits[1:]
    begins = pieces.row_splits[:-1]
    bounds = tf.gather(pieces.row_splits, word_splits)
    sizes = bounds[1:] - bounds[:-1]
    counts = tf.maximum(sizes - tokens + step - 1, 0) // step + 1
    sentences = rows_of_values(tf.pad(tf.cumsum(counts), [[1, 0]]))
    first_token = tf.gather(bounds, sentences) + step * tf.ragged.range(counts).flat_values
    last_word = tf.gather(word_splits, sentences + 1)
    first = tf.minimum(tf.searchsorted(begins, first_token, out_type=tf.int64), last_word)
    last = tf.searchsorted(ends, first_token + tokens, side="right", out_type=tf.int64)
    last = tf.maximum(tf.minimum(last, last_word), first)
    # A word is tagged in the window whose middle is the nearest to its own.
    word_sentences = rows_of_values(word_splits)
    middle = begins + ends - 2 * tf.gather(bounds, word_sentences) - step
    home = tf.clip_by_value(middle // (2 * step), 0, tf.gather(counts, word_sentences) - 1)
    home += tf.gather(tf.cumsum(counts, exclusive=True), word_sentences)
    core = tf.math.bincount(tf.cast(home, tf.int32), minlength=tf.size(sentences), dtype=tf.int64)
    core = core[: tf.size(sentences)]
    core_end = tf.cumsum(core)
    words: Any = tf.concat(
        [
            tf.ragged.range(core_end - core, core_end),
            tf.ragged.range(first, core_end - core),
            tf.ragged.range(core_end, last),
        ],
        axis=1,
    )
    token_begin = tf.gather(pieces.row_splits, first)
    inner = tf.ragged.range(token_begin, tf.gather(pieces.row_splits, last))
    inner = inner.with_flat_values(tf.gather(pieces.flat_values, inner.flat_values))
    ones = tf.ones([tf.size(sentences), 1], tf.int32)
    starts = (
        tf.gather(begins, words.flat_values) - tf.gather(token_begin, rows_of_values(words.row_splits)) + 1
    )
    return Windows(
        tf.concat([start_id * ones, inner, end_id * ones], axis=1),
        words,
        words.with_flat_values(tf.cast(starts, tf.int32)),
        core,
        sentences,
    )


def first_windows(windows: Windows) -> Any:
    """The number of each sentence's first window, int64 [B], of all their windows in order."""
    ones = tf.ones_like(windows.sentences[:1], tf.bool)
    return tf.where(tf.concat([ones, windows.sentences[1:] != windows.sentences[:-1]], axis=0))[:, 0]
