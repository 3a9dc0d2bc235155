"""From tokens to words."""

from keras import ops

MODES = ("first", "mean")


def first_token_weights(word_starts, length):
    """Which token is each word's first, float32 [B, W, T], 0 or 1.

    Args:
        word_starts: int32 [B, W], the place of each word's first token; 0 = no word.
        length: T.
    """
    starts = ops.expand_dims(word_starts, -1)  # [B, W, 1]
    found = ops.logical_and(ops.equal(starts, ops.arange(length, dtype="int32")), starts > 0)
    return ops.cast(found, "float32")


def mean_token_weights(word_starts, padding_mask):
    """How much each token counts in each word's mean, float32 [B, W, T]; the words may stand in any order.

    Args:
        word_starts: int32 [B, W], the place of each word's first token; 0 = no word.
        padding_mask: int32 [B, T]; 1 = a real token. The last real one belongs to no word.
    """
    places = ops.arange(ops.shape(padding_mask)[1], dtype="int32")
    last = ops.max(ops.cast(padding_mask, "int32") * places, axis=1)  # [B]
    starts, others = ops.expand_dims(word_starts, 2), ops.expand_dims(word_starts, 1)
    # A word ends where the next one starts.
    next_starts = ops.where(others > starts, others, ops.reshape(last, (-1, 1, 1)))
    ends = ops.expand_dims(ops.min(next_starts, axis=2), -1)  # [B, W, 1]
    inside = ops.logical_and(ops.logical_and(starts > 0, places >= starts), places < ends)
    weights = ops.cast(inside, "float32")
    return weights / ops.maximum(ops.sum(weights, axis=-1, keepdims=True), 1.0)
