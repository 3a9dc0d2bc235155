"""Tags sentences of any length in one graph: windows are scored in chunks, whole sentences are decoded in chunks."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from kmha.bundle.bundle import Bundle
from kmha.features import WORD_MASK
from kmha.inference.tagger import BATCH_TOKENS, BATCH_WORDS
from kmha.layers.crf_decoding import Decoded, decode
from kmha.text.ragged import Ragged
from kmha.text.sentence_preprocessor import EncodedSentences


def split_function(bundle: Bundle) -> Any:
    """A graph function of texts, string [B], that returns their `kmha.text.words.Words`."""
    return tf.function(bundle.preprocessor.words, autograph=False)


def windows_function(bundle: Bundle) -> Any:
    """A graph function of words, string [N], and sentence lengths, int64 [B]; returns `EncodedSentences`."""

    def windows(words, lengths):
        return bundle.preprocessor.encode(Ragged.from_row_lengths(words, lengths))

    return tf.function(windows, autograph=False)


def scores_function(bundle: Bundle) -> Any:
    """A graph function of `EncodedSentences` that returns the scores float32 [N, K] of all its words."""
    model, texts = bundle.model, bundle.preprocessor

    def scores(encoded: EncodedSentences):
        lengths = tf.cast(encoded.windows.sequences.row_lengths(), tf.int32)
        counts, ends = encoded.windows.counts, tf.cumsum(encoded.windows.counts)

        def chunk(chosen, longest):
            features = texts.pad(texts.select_windows(encoded, chosen))
            found = tf.boolean_mask(model(features, training=False), features[WORD_MASK] > 0)
            end = tf.gather(ends, chosen)
            return tf.ragged.range(end - tf.gather(counts, chosen), end).flat_values, (found,)

        (found,) = _by_length(lengths, BATCH_TOKENS, chunk, [tf.TensorSpec([None, model.num_labels])])
        return found

    return tf.function(scores, autograph=False)


def decode_function(bundle: Bundle) -> Any:
    """A graph function of scores float32 [N, K] and lengths int64 [B] that returns the `Decoded` of whole sentences.

    The result has the words of all sentences in their order: tag_ids int32 [N], marginals float32 [N, K],
    path_probabilities float32 [N].
    """
    model = bundle.model

    def decoded(scores, lengths):
        lengths = tf.cast(lengths, tf.int32)
        begins, count = tf.cumsum(lengths, exclusive=True), tf.shape(scores)[0]
        # Padding reads this row of zeros.
        scores = tf.pad(scores, [[0, 1], [0, 0]])

        def chunk(chosen, longest):
            mask = tf.sequence_mask(tf.gather(lengths, chosen), longest)
            places = tf.gather(begins, chosen)[:, None] + tf.range(longest)
            emissions = tf.gather(scores, tf.where(mask, places, count))
            found = decode(model.potentials(emissions, tf.cast(mask, tf.int32)))
            numbers = tf.cast(tf.boolean_mask(places, mask), tf.int64)
            return numbers, tuple(tf.boolean_mask(values, mask) for values in found)

        specs = [
            tf.TensorSpec([None], tf.int32),
            tf.TensorSpec([None, model.num_labels]),
            tf.TensorSpec([None]),
        ]
        return Decoded(*_by_length(lengths, BATCH_WORDS, chunk, specs))

    return tf.function(decoded, autograph=False)


def _by_length(lengths, most: int, chunk: Callable, specs: list[tf.TensorSpec]) -> list[Any]:
    """Computes values of the words of rows in chunks of rows of similar length, which limits memory.

    Args:
        lengths: Length of each row, int32 [R].
        most: The largest padded length of a chunk; a chunk has at least one row.
        chunk: A function of the numbers of some rows, int32 [r], and their greatest length, at least 1. It returns the
            numbers of their words among all words, int64 [n], and the words' values, [n, …] each.
        specs: Specs of the values.

    Returns:
        The values of all words in their order.
    """
    order = tf.argsort(lengths, direction="DESCENDING", stable=True)

    def step(first, numbers, *values):
        longest = tf.maximum(lengths[order[first]], 1)
        last = first + tf.maximum(most // longest, 1)
        more, found = chunk(order[first:last], longest)
        values = (tf.concat(pair, axis=0) for pair in zip(values, found, strict=True))
        return (last, tf.concat([numbers, more], axis=0), *values)

    empty = [tf.zeros([0, *spec.shape[1:]], spec.dtype) for spec in specs]
    _, numbers, *values = tf.while_loop(
        lambda first, *_: first < tf.size(order),
        step,
        [tf.constant(0), tf.zeros([0], tf.int64), *empty],
        shape_invariants=[tf.TensorShape([]), tf.TensorShape([None]), *(spec.shape for spec in specs)],
        # Parallel chunks would need the memory of all of them.
        parallel_iterations=1,
    )
    places = tf.argsort(numbers)
    return [tf.gather(value, places) for value in values]
