"""Token ids that a server passes on: checked, and cleared of what it filled them up with."""

import tensorflow as tf

from kmha.features import PADDING_MASK, TOKEN_IDS


def checked_in_graph(token_ids, padding_mask, vocabulary_size: int, max_length: int):
    """The same features, once they are known to be usable: a wrong one is an error that names the input.

    A lookup alone would take some negative ids for others, and fail for the rest deep inside the model.

    Args:
        token_ids: int32 [B, T].
        padding_mask: int32 [B, T].
        vocabulary_size: Ids must be in [0, vocabulary_size).
        max_length: T must be at most this.

    Returns:
        token_ids, and padding_mask as int32 of 0 and 1 (above 0 is a real token).

    Raises:
        tf.errors.InvalidArgumentError: When the graph runs; an id out of range, too long a sequence, a mask of
            another shape.
    """
    shape = tf.shape(token_ids)
    wrong = tf.boolean_mask(token_ids, (token_ids < 0) | (token_ids >= vocabulary_size))
    checks = [
        tf.debugging.Assert(
            tf.equal(tf.size(wrong), 0),
            [f"{TOKEN_IDS} must be in [0, {vocabulary_size}), given", wrong[:1]],
        ),
        tf.debugging.Assert(
            shape[1] <= max_length, [f"{TOKEN_IDS} must be at most {max_length} long, given length", shape[1]]
        ),
        tf.debugging.Assert(
            tf.reduce_all(tf.equal(shape, tf.shape(padding_mask))),
            [f"{PADDING_MASK} must have the shape of {TOKEN_IDS}", shape, "given", tf.shape(padding_mask)],
        ),
    ]
    # Stateless ops do not wait for an assertion by themselves.
    with tf.control_dependencies(checks):
        return tf.identity(token_ids), tf.cast(padding_mask > 0, tf.int32)


def without_filling(token_ids, padding_mask, start_id: int):
    """The mask without the columns that a batching server has added.

    TensorFlow Serving makes the sequences of several requests equally long by repeating the first value of each
    tensor (`PadTensor` in tensorflow_serving/batching/batching_util.cc): the id of [CLS], with a mask of 1. So a
    [CLS] anywhere but at the start is no token; texts never have one there.

    Args:
        token_ids: int32 [B, T].
        padding_mask: int32 [B, T] of 0 and 1.
        start_id: Of [CLS].

    Returns:
        int32 [B, T].
    """
    later = tf.range(tf.shape(token_ids)[1]) > 0
    return padding_mask * tf.cast(~(later & tf.equal(token_ids, start_id)), tf.int32)


def compiled_lengths(max_length: int) -> list[int]:
    """The lengths that a compiled model is run at: powers of two from 16, and max_length.

    XLA compiles once a shape, which takes seconds, so there must be few.
    """
    doubled = [2**power for power in range(4, 31) if 2**power < max_length]
    return [*doubled, max_length]


def at_compiled_length(token_ids, padding_mask, lengths: list[int], padding_id: int):
    """Features int32 [B, T] padded to the smallest of the lengths, in rising order, that holds them."""
    length = tf.shape(token_ids)[1]
    index = tf.reduce_sum(tf.cast(tf.constant(lengths) < length, tf.int32))
    missing = tf.gather(tf.constant(lengths), index) - length
    paddings = tf.stack([[0, 0], tf.stack([0, missing])])
    return tf.pad(token_ids, paddings, constant_values=padding_id), tf.pad(padding_mask, paddings)
