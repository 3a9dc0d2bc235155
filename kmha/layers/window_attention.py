"""Attention to what stands near, and to a few first positions: time and memory grow with the length, not its square.

Source: Beltagy et al. 2020, arXiv:2004.05150 (Longformer).
"""

from collections.abc import Callable

from keras import ops

from kmha.layers.attention_options import mask_bias
from kmha.layers.blocks import join_blocks, split_blocks

# Products of smaller blocks take as long.
SMALLEST_BLOCK = 64


def window_mask(length, window: int, num_globals: int = 0):
    """The mask that says the same to attention over all pairs.

    Args:
        length: T, an int or int32 [].
        window: A position attends to those at most so far before and behind it.
        num_globals: So many first positions attend to all, and all to them.

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
    """Which positions see something in their window or among the first: float32 [B, T, 1].

    Args:
        mask: int32 [B, T]; 1 = may be attended to.
        window: As in `window_mask`.
        num_globals: As in `window_mask`.
    """
    mask = ops.cast(mask, "int32")
    length = ops.shape(mask)[1]
    places = ops.arange(length, dtype="int32")
    before = ops.pad(ops.cumsum(mask, axis=1), ((0, 0), (1, 0)))  # how many are open before each place
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
    """What `attention.scaled_dot_product_attention` gives under `window_mask`, without what the mask hides.

    A block of queries meets its own block of keys, the one before and the one behind, and the first keys.

    Args:
        query: float [B, N, T, H].
        key: float [B, N, T, H].
        value: float [B, N, T, H].
        window: As in `window_mask`.
        num_globals: As in `window_mask`.
        mask: int32 or bool [B, T]; 1 = attend. None attends everywhere.
        dropout: Applied to the weights before they meet the values; None drops nothing.

    Returns:
        float [B, N, T, H]; a row that sees nothing gives zeros. Softmax is in float32.
    """
    length = ops.shape(query)[2]
    # At least as large as what a position sees to one side; or one block, where all of a text is near.
    size = _smaller(max(window, SMALLEST_BLOCK), length)
    scaled = query * ops.cast(query.shape[-1] ** -0.5, query.dtype)
    mask = ops.cast(ops.ones_like(key[:1, 0, :, 0]) if mask is None else mask, "int32")
    first_mask, near_mask = mask[:, :num_globals], mask
    if num_globals:
        # The first positions are met apart, whether they are near or not.
        near_mask = mask * ops.cast(ops.arange(ops.shape(mask)[1], dtype="int32") >= num_globals, "int32")
    keys, values = (_neighbours(split_blocks(each, size)) for each in (key, value))
    scores = ops.cast(ops.matmul(split_blocks(scaled, size), _transposed(keys)), "float32")
    scores = scores + _closed_near(near_mask, size) + _far(size, window)  # [I, B, N, s, 3 s]
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
        of_first = _whole(scaled[:, :, :num_globals], key, value, mask, dropout)
        output = ops.concatenate([of_first, output[:, :, num_globals:]], axis=2)
    is_open = ops.expand_dims(open_window_rows(mask, window, num_globals), 1)
    return output * ops.cast(is_open, output.dtype)


def _whole(scaled, key, value, mask, dropout):
    """The few queries that attend to all, float [B, N, T, H]."""
    scores = ops.cast(ops.matmul(scaled, _transposed(key)), "float32")
    scores = scores + mask_bias(ops.expand_dims(ops.expand_dims(mask, 1), 1))
    weights = ops.cast(ops.softmax(scores, axis=-1), value.dtype)
    return ops.matmul(weights if dropout is None else dropout(weights), value)


def _neighbours(blocks):
    """Each block between the one before and the one behind: [I, B, N, s, H] to [I, B, N, 3 s, H]."""
    none = ops.zeros_like(blocks[:1])
    before, behind = (
        ops.concatenate([none, blocks[:-1]], axis=0),
        ops.concatenate([blocks[1:], none], axis=0),
    )
    return ops.concatenate([before, blocks, behind], axis=3)


def _closed_near(mask, size: int):
    """What is added to the scores of each block's neighbours, float32 [I, B, 1, 1, 3 s]; past the ends: closed."""
    blocks = split_blocks(ops.expand_dims(ops.expand_dims(mask, 1), -1), size)  # [I, B, 1, s, 1]
    return mask_bias(_transposed(_neighbours(blocks)))


def _far(size, window: int):
    """What is added to the scores of positions in a block and its neighbours, float32 [s, 3 s]."""
    places = ops.arange(3 * size, dtype="int32")
    distance = ops.abs(ops.expand_dims(places[:size] + size, 1) - ops.expand_dims(places, 0))
    return mask_bias(distance <= window)


def _smaller(size: int, length):
    return min(size, length) if isinstance(length, int) else ops.minimum(size, length)


def _transposed(x):
    axes = list(range(len(x.shape)))
    return ops.transpose(x, (*axes[:-2], axes[-1], axes[-2]))
