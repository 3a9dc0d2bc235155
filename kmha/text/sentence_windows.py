"""Splits long sentences into windows; each word is tagged in the window in which it is closest to the middle."""

from typing import Any, NamedTuple

import tensorflow as tf

from kmha.text.ragged import rows_of_values


class Windows(NamedTuple):
    """V windows of sentences, in the order of the sentences.

    Attributes:
        sequences: Token ids with special tokens, ragged int32 [V, None].
        words: Index of each word among all words of all sentences, ragged int64 [V, None]; those to tag come first.
        starts: Position of each word's first token in the sequence, ragged int32 [V, None].
        counts: Number of words to tag in each window, int64 [V]. Every word is tagged in exactly one window.
        sentences: Index of the sentence of each window, int64 [V]; each sentence has one or more.
    """

    sequences: Any
    words: Any
    starts: Any
    counts: Any
    sentences: Any


def max_word_tokens(tokens: int) -> int:
    """Maximum tokens of a word, so that each word fits in a window of `tokens` tokens at a stride of half of that."""
    return tokens // 2


def split_windows(pieces, word_splits, tokens: int, start_id: int, end_id: int) -> Windows:
    """Splits sentences into windows with a stride of half a window.

    Args:
        pieces: Token ids of each word of all sentences, ragged int32 [N, None], 1 to `max_word_tokens` each.
        word_splits: int64 [B + 1], index of the first word of each sentence, and N.
        tokens: Maximum tokens of a window without special tokens; at least 2.
        start_id: Id of the token before each window.
        end_id: Id of the token after each window.
    """
    stride = tokens // 2
    ends = pieces.row_splits[1:]
    begins = pieces.row_splits[:-1]
    bounds = tf.gather(pieces.row_splits, word_splits)
    sizes = bounds[1:] - bounds[:-1]
    counts = tf.maximum(sizes - tokens + stride - 1, 0) // stride + 1
    sentences = rows_of_values(tf.pad(tf.cumsum(counts), [[1, 0]]))
    first_token = tf.gather(bounds, sentences) + stride * tf.ragged.range(counts).flat_values
    last_word = tf.gather(word_splits, sentences + 1)
    first = tf.minimum(tf.searchsorted(begins, first_token, out_type=tf.int64), last_word)
    last = tf.searchsorted(ends, first_token + tokens, side="right", out_type=tf.int64)
    last = tf.maximum(tf.minimum(last, last_word), first)
    # A word is tagged in the window whose middle is closest to its own.
    word_sentences = rows_of_values(word_splits)
    middle = begins + ends - 2 * tf.gather(bounds, word_sentences) - stride
    home = tf.clip_by_value(middle // (2 * stride), 0, tf.gather(counts, word_sentences) - 1)
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
    """Index of the first window of each sentence, int64 [B]."""
    ones = tf.ones_like(windows.sentences[:1], tf.bool)
    return tf.where(tf.concat([ones, windows.sentences[1:] != windows.sentences[:-1]], axis=0))[:, 0]
