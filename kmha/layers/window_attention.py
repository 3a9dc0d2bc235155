"""Sliding-window attention with a few global positions, in time and memory linear in the length.

Source: Beltagy et al. 2020, arXiv:2004.05150 (Longformer).
"""

from collections.abc import Callable

from keras import ops

from kmha.layers.attention_options import mask_bias
from kmha.layers.blocks import join_blocks, split_blocks

# Smaller blocks are not faster.
SMALLEST_BLOCK = 64


def window_mask(length, window: int, num_globals: int = 0):
    """The equivalent mask for dense attention.

    Args:
        length: T, an int or int32 [].
        window: Maximum distance of two positions that attend to each other.
        num_globals: Number of first positions that attend to all positions, and all to them.

    Returns:
        int32 [1, T, T]; 1 = attend.
    """
    places = ops.arange(length, dtype="int32")
    rows, columns = ops.expand_dims(places, 1), ops.expand_dims(places, 0)
    seen = ops.abs(rows - columns) <= window
    if num_globals:
        seen = ops.logical_or(seen, ops.minimum(rows, columns) < num_globals)
    return ops.expand_dims(ops.cast(seen, "int32"), 0)


def open_window_rows(mask, window: int, num_globals: int = 0):
    """Which positions are not fully masked: float32 [B, T, 1].

    Args:
        mask: int32 [B, T]; 1 = may be attended to.
        window: As in `window_mask`.
        num_globals: As in `window_mask`.
    """
    mask = ops.cast(mask, "int32")
    length = ops.shape(mask)[1]
    places = ops.arange(length, dtype="int32")
    before = ops.pad(ops.cumsum(mask, axis=1), ((0, 0), (1, 0)))  # unmasked positions before each position
    seen = ops.take(before, ops.minimum(places + window + 1, length), axis=1)
    seen = seen - ops.take(before, ops.maximum(places - window, 0), axis=1)
    if num_globals:
        seen = seen + ops.sum(mask[:, :num_globals], axis=1, keepdims=True)
        all_seen = ops.sum(mask, axis=1, keepdims=True)
        seen = ops.where(places < num_globals, all_seen, seen)
    return ops.cast(ops.expand_dims(seen > 0, -1), "float32")


def windowed_attention(
    query, key, value, window: int, num_globals: int = 0, mask=None, dropout: Callable | None = None
):
    """The output of `attention.scaled_dot_product_attention` with `window_mask`, without computing masked pairs.

    A block of queries attends to its own block of keys, the previous and the next block, and the global keys.

    Args:
        query: float [B, N, T, H].
        key: float [B, N, T, H].
        value: float [B, N, T, H].
        window: As in `window_mask`.
        num_globals: As in `window_mask`.
        mask: int32 or bool [B, T]; 1 = attend. None: no mask.
        dropout: Function applied to the weights before the product with the values; None: no dropout.

    Returns:
        float [B, N, T, H]; fully masked rows are zero. Softmax is in float32.
    """
    length = ops.shape(query)[2]
    # At least the window; or one block, if the whole text is in the window.
    size = _minimum(max(window, SMALLEST_BLOCK), length)
    scaled = query * ops.cast(query.shape[-1] ** -0.5, query.dtype)
    mask = ops.cast(ops.ones_like(key[:1, 0, :, 0]) if mask is None else mask, "int32")
    first_mask, near_mask = mask[:, :num_globals], mask
    if num_globals:
        # Global positions have their own scores, even if they are in the window.
        near_mask = mask * ops.cast(ops.arange(ops.shape(mask)[1], dtype="int32") >= num_globals, "int32")
    keys, values = (_with_adjacent(split_blocks(each, size)) for each in (key, value))
    scores = ops.cast(ops.matmul(split_blocks(scaled, size), _transposed(keys)), "float32")
    scores = scores + _adjacent_bias(near_mask, size) + _distance_bias(size, window)  # [I, B, N, s, 3 s]
    if num_globals:
        first = ops.cast(ops.matmul(scaled, _transposed(key[:, :, :num_globals])), "float32")
        first = first + mask_bias(ops.expand_dims(ops.expand_dims(first_mask, 1), 1))
        scores = ops.concatenate([split_blocks(first, size), scores], axis=-1)
    weights = ops.cast(ops.softmax(scores, axis=-1), value.dtype)
    weights = weights if dropout is None else dropout(weights)
    output = join_blocks(ops.matmul(weights[..., -3 * size :], values), length)
    if num_globals:
        to_first = join_blocks(weights[..., : -3 * size], length)
        output = output + ops.matmul(to_first, value[:, :, :num_globals])
        of_first = _attend_to_all(scaled[:, :, :num_globals], key, value, mask, dropout)
        output = ops.concatenate([of_first, output[:, :, num_globals:]], axis=2)
    is_open = ops.expand_dims(open_window_rows(mask, window, num_globals), 1)
    return output * ops.cast(is_open, output.dtype)


def _attend_to_all(scaled, key, value, mask, dropout):
    """Dense attention of the global queries, float [B, N, T, H]."""
    scores = ops.cast(ops.matmul(scaled, _transposed(key)), "float32")
    scores = scores + mask_bias(ops.expand_dims(ops.expand_dims(mask, 1), 1))
    weights = ops.cast(ops.softmax(scores, axis=-1), value.dtype)
    return ops.matmul(weights if dropout is None else dropout(weights), value)


def _with_adjacent(blocks):
    """Concatenates each block with the previous and the next one: [I, B, N, s, H] to [I, B, N, 3 s, H]."""
    none = ops.zeros_like(blocks[:1])
    before, behind = (
        ops.concatenate([none, blocks[:-1]], axis=0),
        ops.concatenate([blocks[1:], none], axis=0),
    )
    return ops.concatenate([before, blocks, behind], axis=3)


def _adjacent_bias(mask, size: int):
    """Mask bias of the keys of adjacent blocks, float32 [I, B, 1, 1, 3 s]; masked past the ends."""
    blocks = split_blocks(ops.expand_dims(ops.expand_dims(mask, 1), -1), size)  # [I, B, 1, s, 1]
    return mask_bias(_transposed(_with_adjacent(blocks)))


def _distance_bias(size, window: int):
    """Mask bias by distance for the keys of adjacent blocks, float32 [s, 3 s]."""
    places = ops.arange(3 * size, dtype="int32")
    distance = ops.abs(ops.expand_dims(places[:size] + size, 1) - ops.expand_dims(places, 0))
    return mask_bias(distance <= window)


def _minimum(size: int, length):
    return min(size, length) if isinstance(length, int) else ops.minimum(size, length)


def _transposed(x):
    axes = list(range(len(x.shape)))
    return ops.transpose(x, (*axes[:-2], axes[-1], axes[-2]))
