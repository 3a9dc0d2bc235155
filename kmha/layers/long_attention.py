"""Attention in memory linear in the length: block by block with a custom gradient, and in a sliding window.

Blockwise: the weights [B, N, T, S] are never stored. A block of queries attends to one block of keys after the other;
its average so far is merged with each new block by the log-sum-exp of both (online softmax). The gradient recomputes
the weights block by block from the output and one number for each row. Sources: Milakov and Gimelshein 2018,
arXiv:1805.02867 (online softmax); Dao et al. 2022, arXiv:2205.14135 (FlashAttention), the algorithm implemented here.

Sliding window, with a few global positions, also in linear time. Source: Beltagy et al. 2020, arXiv:2004.05150.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from keras import ops

from kmha.layers.attention_parts import even_size, join_blocks, mask_bias, pad_axis, split_blocks
from kmha.layers.dropout import block_seed, keep_mask, keep_rate

# Measured (docs/how-to/long-texts.md): smaller blocks cost time, larger blocks exceed the caches.
LARGEST_BLOCK = 512
# Initial log-sum-exp: far below that of a block of masked keys.
_EMPTY = -1e30


def blockwise_attention(query, key, value, mask=None, dropout: float = 0.0, seed=None) -> Any:
    """The output of `attention.scaled_dot_product_attention` in memory linear in the lengths: float [B, N, T, H].

    Args:
        query: float [B, N, T, H].
        key: float [B, N, S, H].
        value: float [B, N, S, H].
        mask: int32 or bool [B, S] or [B, T, S]; 1 = attend. None: no mask.
        dropout: Dropout rate of the weights, in [0, 1), rounded to a 65,536th.
        seed: With dropout, two integers from `keras.random.SeedGenerator.next`; equal seeds drop equal weights.
    """
    length, keys = ops.shape(query)[2], ops.shape(key)[2]
    size, key_size = even_size(length, LARGEST_BLOCK), even_size(keys, LARGEST_BLOCK)
    columns, pairs, is_open = _masks(key, mask, size, key_size)

    @ops.custom_gradient
    def attend(query, key, value):
        scaled = split_blocks(query * ops.cast(query.shape[-1] ** -0.5, query.dtype), size)
        key_blocks, value_blocks = split_blocks(key, key_size), split_blocks(value, key_size)
        tiles = _Tiles(scaled, key_blocks, value_blocks, columns, pairs, dropout, seed)
        averages, log_sums = _forward(tiles)
        averages = averages * is_open
        # In a fully masked row every weight is exp(-1e9 - 0) = 0.
        log_sums = log_sums * is_open

        def gradient(*args, upstream=None):
            by_output = split_blocks(args[-1] if upstream is None else upstream, size)
            by_output = by_output * ops.cast(is_open, by_output.dtype)
            by_query, by_key, by_value = _backward(tiles, averages, log_sums, by_output)
            by_query = by_query * query.shape[-1] ** -0.5
            found = ((by_query, query, length), (by_key, key, keys), (by_value, value, keys))
            return tuple(ops.cast(join_blocks(by, count), x.dtype) for by, x, count in found)

        return ops.cast(join_blocks(averages, length), value.dtype), gradient

    return attend(query, key, value)


@dataclasses.dataclass(frozen=True)
class _Tiles:
    """Inputs in blocks: I blocks of t queries, J blocks of s keys."""

    queries: Any  # scaled, float [I, B, N, t, H]
    keys: Any  # float [J, B, N, s, H]
    values: Any  # float [J, B, N, s, H]
    columns: Any  # mask bias of each key, float32 [J, B, 1, s, 1]; None for a mask of pairs
    pairs: Any  # mask of pairs, int32 [B, I·t, J·s]; None for a mask of keys
    dropout: float  # dropout rate of the weights
    seed: Any  # seed of all blocks

    def scores(self, i, j, rows=None):
        """Scores float32 [B, N, t, s] of queries i and keys j, plus `rows`, float32 [B, N, t, 1]."""
        columns = None if self.columns is None else self.columns[j]
        scores = _product(self.queries[i], self.keys[j], rows, columns)
        if self.pairs is None:
            return scores
        size, key_size = ops.shape(scores)[2:]
        own = ops.slice(self.pairs, (0, i * size, j * key_size), (ops.shape(self.pairs)[0], size, key_size))
        return scores + mask_bias(ops.expand_dims(own, 1))

    def keep_mask(self, i, j, scores):
        """Dropout mask float32 [B, N, t, s]; 1 = keep."""
        number = i * ops.shape(self.keys)[0] + j
        return keep_mask(ops.shape(scores), self.dropout, block_seed(self.seed, number))

    @property
    def scale(self) -> float:
        """The factor that compensates for dropped weights."""
        return 1.0 / keep_rate(self.dropout)


def _masks(key, mask, size, key_size):
    """Columns and pairs of `_Tiles`, and which rows are not fully masked, float32 [I or 1, B or 1, 1, t or 1, 1]."""
    count = ops.shape(key)[2]
    if mask is None:
        mask = ops.ones_like(key[:1, 0, :, 0], dtype="int32")
    mask = ops.cast(mask, "int32")
    if len(mask.shape) == 2:
        blocks = split_blocks(ops.expand_dims(ops.expand_dims(mask, 1), -1), key_size)
        some = ops.expand_dims(ops.expand_dims(ops.max(mask, axis=1, keepdims=True), -1), -1)
        return mask_bias(blocks), None, ops.cast(ops.expand_dims(some, 0), "float32")
    if len(mask.shape) != 3:
        raise ValueError(f"attention_mask must be [B, S] or [B, T, S], got shape {tuple(mask.shape)}")
    rows = ops.shape(mask)[1]
    some = split_blocks(ops.expand_dims(ops.max(mask, axis=2, keepdims=True), 1), size)
    pairs = pad_axis(mask, ops.shape(some)[0] * size - rows, axis=1)
    return None, pad_axis(pairs, -count % key_size, axis=2), ops.cast(some, "float32")


def _product(left, right, rows=None, columns=None):
    """The sum left [B, N, t, H] · right [B, N, s, H]ᵀ + rows [B, N, t, 1] + columns [B, 1, s, 1]ᵀ, float32."""
    if left.dtype == "float32":
        # As two more columns of the product: separate sums would each take a pass over the block.
        if rows is not None:
            left = ops.concatenate([left, rows], axis=-1)
            right = ops.concatenate([right, ops.ones_like(right[..., :1])], axis=-1)
        if columns is not None:
            left = ops.concatenate([left, ops.ones_like(left[..., :1])], axis=-1)
            right = ops.concatenate([right, ops.zeros_like(right[..., :1]) + columns], axis=-1)
        return _matmul_transposed(left, right)
    product = ops.cast(_matmul_transposed(left, right), "float32")
    product = product if rows is None else product + rows
    return product if columns is None else product + ops.transpose(columns, (0, 1, 3, 2))


def _matmul_transposed(left, right):
    return ops.matmul(left, ops.transpose(right, (0, 1, 3, 2)))


def _forward(tiles: _Tiles):
    """Weighted averages of the values, float32 [I, B, N, t, H], and log-sum-exp of each row [I, B, N, t, 1]."""
    count, keys = ops.shape(tiles.queries)[0], ops.shape(tiles.keys)[0]
    nothing = ops.zeros_like(tiles.queries, dtype="float32")

    def of_block(i, averages, log_sums):
        def with_keys(j, average, log_sum):
            scores = tiles.scores(i, j)
            weights = ops.softmax(scores, axis=-1)
            # The largest weight is exp(largest score - log-sum-exp): this saves a second pass of exponentials.
            largest = ops.max(scores, axis=-1, keepdims=True)
            own_sum = largest - ops.log(ops.max(weights, axis=-1, keepdims=True))
            if tiles.dropout:
                weights = weights * tiles.keep_mask(i, j, scores)
            own = ops.matmul(ops.cast(weights, tiles.values.dtype), tiles.values[j])
            both = ops.logaddexp(log_sum, own_sum)
            average = average * ops.exp(log_sum - both) + ops.cast(own, "float32") * ops.exp(own_sum - both)
            return _after(j + 1, average), average, both

        start = (0, nothing[i], nothing[i][..., :1] + _EMPTY)
        _, average, log_sum = ops.while_loop(lambda j, *_: j < keys, with_keys, start)
        scaled = average * tiles.scale
        return _after(i + 1, average), _put(averages, i, scaled), _put(log_sums, i, log_sum)

    start = (0, nothing, nothing[..., :1])
    return ops.while_loop(lambda i, *_: i < count, of_block, start)[1:]


def _backward(tiles: _Tiles, averages, log_sums, by_output):
    """Gradients float32 of the scaled queries, the keys and the values, in blocks, from the result of `_forward`.

    `by_output` is the gradient of the averages, float [I, B, N, t, H].
    """
    count, keys = ops.shape(tiles.queries)[0], ops.shape(tiles.keys)[0]
    # For each row, the sum over its keys of weight times gradient of the weight.
    sums = ops.sum(ops.cast(by_output, "float32") * averages, axis=-1, keepdims=True)
    by_output = by_output * ops.cast(tiles.scale, by_output.dtype)

    def of_keys(j, by_queries, by_keys, by_values):
        def with_queries(i, by_queries, by_key, by_value):
            weights = ops.exp(tiles.scores(i, j, rows=-log_sums[i]))
            if tiles.dropout:
                is_kept = tiles.keep_mask(i, j, weights)
                by_scores = weights * (_product(by_output[i], tiles.values[j]) * is_kept - sums[i])
                weights = weights * is_kept
            else:
                by_scores = weights * _product(by_output[i], tiles.values[j], rows=-sums[i])
            weights, by_scores = (ops.cast(each, by_output.dtype) for each in (weights, by_scores))
            by_value = by_value + _matmul_of_transposed(weights, by_output[i])
            by_key = by_key + _matmul_of_transposed(by_scores, tiles.queries[i])
            by_query = by_queries[i] + ops.cast(ops.matmul(by_scores, tiles.keys[j]), "float32")
            following = _after(i + 1, by_key, by_value, by_query)
            return following, _put(by_queries, i, by_query), by_key, by_value

        start = (0, by_queries, nothing[j], nothing[j])
        found = ops.while_loop(lambda i, *_: i < count, with_queries, start)
        _, by_queries, by_key, by_value = found
        following = _after(j + 1, by_key, by_value)
        return following, by_queries, _put(by_keys, j, by_key), _put(by_values, j, by_value)

    nothing = ops.zeros_like(tiles.keys, dtype="float32")
    start = (0, ops.zeros_like(tiles.queries, dtype="float32"), nothing, nothing)
    return ops.while_loop(lambda j, *_: j < keys, of_keys, start)[1:]


def _matmul_of_transposed(left, right):
    return ops.cast(ops.matmul(ops.transpose(left, (0, 1, 3, 2)), right), "float32")


def _after(number, *blocks):
    """The number, with a data dependency on the blocks: TensorFlow's loops otherwise run several iterations ahead.

    Without this, a hundred blocks of weights may be in memory at once.
    """
    for block in blocks:
        # Always 0: an absolute value is never below -1, but graph optimizers do not detect that.
        number = number + ops.cast(ops.abs(ops.sum(block[:1, :1, :1, :1])) < -1.0, "int32")
    return number


def _put(blocks, place, block):
    """The blocks with one of them replaced."""
    return ops.scatter_update(blocks, ops.reshape(place, (1, 1)), ops.expand_dims(block, 0))


# Smaller blocks are not faster.
SMALLEST_BLOCK = 64


def window_mask(length, window: int, num_globals: int = 0):
    """The equivalent mask for dense attention, int32 [1, T, T]; 1 = attend.

    Args:
        length: T, an int or int32 [].
        window: Maximum distance of two positions that attend to each other.
        num_globals: Number of first positions that attend to all positions, and all to them.
    """
    places = ops.arange(length, dtype="int32")
    rows, columns = ops.expand_dims(places, 1), ops.expand_dims(places, 0)
    seen = ops.abs(rows - columns) <= window
    if num_globals:
        seen = ops.logical_or(seen, ops.minimum(rows, columns) < num_globals)
    return ops.expand_dims(ops.cast(seen, "int32"), 0)


def open_window_rows(mask, window: int, num_globals: int = 0):
    """Which positions are not fully masked: float32 [B, T, 1], from a mask int32 [B, T] and `window_mask`'s options."""
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

    The result is float [B, N, T, H]; fully masked rows are zero. Softmax is in float32.

    Args:
        query: float [B, N, T, H].
        key: float [B, N, T, H].
        value: float [B, N, T, H].
        window: As in `window_mask`.
        num_globals: As in `window_mask`.
        mask: int32 or bool [B, T]; 1 = attend. None: no mask.
        dropout: Function applied to the weights before the product with the values; None: no dropout.
    """
    length = ops.shape(query)[2]
    # At least the window; or one block, if the whole text is in the window.
    size = max(window, SMALLEST_BLOCK)
    size = min(size, length) if isinstance(length, int) else ops.minimum(size, length)
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
    before, after = (ops.concatenate(each, axis=0) for each in ([none, blocks[:-1]], [blocks[1:], none]))
    return ops.concatenate([before, blocks, after], axis=3)


def _adjacent_bias(mask, size: int):
    """Mask bias of the keys of adjacent blocks, float32 [I, B, 1, 1, 3 s]; masked past the ends."""
    blocks = split_blocks(ops.expand_dims(ops.expand_dims(mask, 1), -1), size)  # [I, B, 1, s, 1]
    return mask_bias(_transposed(_with_adjacent(blocks)))


def _distance_bias(size, window: int):
    """Mask bias by distance for the keys of adjacent blocks, float32 [s, 3 s]."""
    places = ops.arange(3 * size, dtype="int32")
    distance = ops.abs(ops.expand_dims(places[:size] + size, 1) - ops.expand_dims(places, 0))
    return mask_bias(distance <= window)


def _transposed(x):
    axes = list(range(len(x.shape)))
    return ops.transpose(x, (*axes[:-2], axes[-1], axes[-2]))
