"""Multi-head attention: the math as functions, and a layer that has the weights.

`docs/concepts/attention.md` derives it and shows common errors.
"""

from collections.abc import Callable, Sequence

import keras
from keras import ops

from kmha.layers.attention_parts import GivenSeed, mask_bias, uses_blocks
from kmha.layers.configurable_layer import ConfigurableLayer
from kmha.layers.long_attention import blockwise_attention, open_window_rows, window_mask, windowed_attention
from kmha.layers.positions import rotate


def attention_mask(query_mask, key_mask=None, causal: bool = False):
    """Combines padding masks int32 or bool [B, T] and [B, S] into an attention mask int32 [B, T, S]; 1 = attend.

    Args:
        query_mask: 1 = a real position.
        key_mask: None: the query's mask (self-attention).
        causal: Whether a position attends only to itself and earlier positions (T = S).
    """
    key_mask = query_mask if key_mask is None else key_mask
    query_mask, key_mask = ops.cast(query_mask, "int32"), ops.cast(key_mask, "int32")
    mask = ops.expand_dims(query_mask, -1) * ops.expand_dims(key_mask, -2)  # [B, T, S]
    if causal:
        steps = ops.arange(ops.shape(mask)[1])
        mask = mask * ops.cast(ops.expand_dims(steps, -1) >= ops.expand_dims(steps, 0), "int32")
    return mask


def scaled_dot_product_attention(query, key, value, mask=None, dropout: Callable | None = None):
    """Scaled dot-product attention: softmax(Q Kᵀ / sqrt(H)) V over unmasked keys.

    Args:
        query: float [B, N, T, H].
        key: float [B, N, S, H].
        value: float [B, N, S, H].
        mask: int32 or bool [B, S] or [B, T, S]; 1 = attend. None: no mask.
        dropout: Function applied to the weights before the product with V; None: no dropout.

    Returns:
        Output, float [B, N, T, H], and the weights before dropout, float32 [B, N, T, S]. Fully masked rows are zero in
        both.

    Source: Vaswani et al. 2017, §3.2.1, arXiv:1706.03762.
    """
    query = query * ops.cast(query.shape[-1] ** -0.5, query.dtype)
    scores = ops.cast(ops.matmul(query, ops.transpose(key, (0, 1, 3, 2))), "float32")
    if mask is None:
        weights = attended = _softmax(scores)
        row_is_open = None
    else:
        attended = _softmax(scores + mask_bias(ops.expand_dims(ops.cast(_as_3d(mask), "bool"), 1)))
        row_is_open = ops.expand_dims(open_rows(mask), 1)  # [B, 1, T or 1, 1]
        weights = attended * row_is_open
    if dropout is not None:
        # In float32, which is faster on CPUs than 16 bits.
        attended = dropout(attended)
    output = ops.matmul(ops.cast(attended, value.dtype), value)
    if row_is_open is not None:
        # Zeroing the output is S/H times cheaper than zeroing the weights, with equal results.
        output = output * ops.cast(row_is_open, output.dtype)
    return output, weights


def open_rows(mask):
    """Which query rows of a mask [B, T, S] are not fully masked: float32 [B, T, 1]; [B, 1, 1] for a mask [B, S]."""
    some = ops.any(ops.cast(mask, "bool"), axis=-1, keepdims=True)
    return ops.cast(ops.expand_dims(some, 1) if len(mask.shape) == 2 else some, "float32")


def _softmax(scores):
    # Keras warns about a softmax over one value; here this is a text of one token and correct.
    return ops.exp(scores - scores) if scores.shape[-1] == 1 else ops.softmax(scores, axis=-1)


def _as_3d(mask):
    """The mask [B, 1 or T, S], from [B, S] or [B, T, S]."""
    if len(mask.shape) == 2:
        return ops.expand_dims(mask, 1)
    if len(mask.shape) != 3:
        raise ValueError(f"attention_mask must be [B, S] or [B, T, S], got shape {tuple(mask.shape)}")
    return mask


@keras.saving.register_keras_serializable(package="kmha")
class MultiHeadAttention(ConfigurableLayer):
    """Multi-head attention from each query position to all unmasked key positions.

    concat(head_1 … head_N) W_o + b_o, head_n = softmax(Q_n K_nᵀ / sqrt(H)) V_n; softmax in float32. Self-attention
    projects queries, keys and values with one fused kernel.

    Args:
        num_heads: Number of attention heads.
        head_dim: Size of one head; None: D / num_heads.
        dropout: Probability of dropping an attention weight, in [0, 1).
        rotary: Whether queries and keys are rotated by their position (see `positions.rotate`).
        use_bias: Whether the projections add a bias.
        kernel_initializer: Initializer of the projections.
        window: Self-attention only: maximum distance of two positions that attend to each other; None: no limit.
        num_globals: With a window, the number of first positions that attend to all positions, and all to them.
        longest: Maximum sequence length, so that graphs need not support longer ones; None: unlimited.

    Call:
        query: float [B, T, D].
        value: float [B, S, E], for keys and values; None: query (self-attention).
        attention_mask: int32 or bool [B, T, S] or [B, S]; 1 = attend.
        return_attention_weights: Whether to return the weights (before dropout) too; without them long sequences are
            computed in blocks, with the same results.
        Returns float [B, T, D], and with the weights also float32 [B, N, T, S]. Fully masked rows are zero in both,
        whatever the biases.

    Raises:
        ValueError: D is not divisible by num_heads and head_dim is None, or the mask has another rank.

    Differs: from keras.layers.MultiHeadAttention: fused projection; zeros instead of the mean for fully masked rows;
        equal outputs with and without returned weights; int32 masks.
    Source: Vaswani et al. 2017, §3.2.2, arXiv:1706.03762.
    """

    def __init__(
        self,
        num_heads: int,
        head_dim: int | None = None,
        dropout: float = 0.0,
        rotary: bool = False,
        use_bias: bool = True,
        kernel_initializer="glorot_uniform",
        window: int | None = None,
        num_globals: int = 0,
        longest: int | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.dropout = dropout
        self.rotary = rotary
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.window, self.num_globals, self.longest = window, num_globals, longest
        self.weight_dropout = keras.layers.Dropout(dropout, name="weight_dropout", dtype=self.dtype_policy)

    def build(self, query_shape, value_shape=None):
        """Creates the projections, fused if query and value have the same size."""
        query_dim = query_shape[-1]
        value_dim = query_dim if value_shape is None else value_shape[-1]
        if self.head_dim is None and query_dim % self.num_heads:
            raise ValueError(
                f"num_heads must divide the hidden size, got hidden size {query_dim} and"
                f" num_heads {self.num_heads}; or give head_dim"
            )
        self.head_size = self.head_dim or query_dim // self.num_heads
        self.fused = query_dim == value_dim
        if self.fused:
            self.query_key_value_kernel = self._kernel("query_key_value_kernel", query_dim, 3)
        else:
            self.query_kernel = self._kernel("query_kernel", query_dim, 1)
            self.key_value_kernel = self._kernel("key_value_kernel", value_dim, 2)
        width = self.num_heads * self.head_size
        self.output_kernel = self._weight("output_kernel", (width, query_dim))
        if self.use_bias:
            self.query_key_value_bias = self.add_weight(
                name="query_key_value_bias", shape=(3, self.num_heads, self.head_size), initializer="zeros"
            )
            self.output_bias = self.add_weight(name="output_bias", shape=(query_dim,), initializer="zeros")
        self.weight_dropout.build(None)

    def _kernel(self, name: str, inner_dim: int, parts: int):
        # Two-dimensional, because initializers compute fan-in and fan-out from the shape.
        return self._weight(name, (inner_dim, parts * self.num_heads * self.head_size))

    def _weight(self, name: str, shape: tuple[int, int]):
        # An initializer instance repeats its values, so each kernel gets its own.
        return self.add_weight(name=name, shape=shape, initializer=self.kernel_initializer.clone())

    def call(self, query, value=None, attention_mask=None, return_attention_weights=False, training=None):
        """See the class."""
        queries, keys, values = self._project(query, value)
        if self.rotary:
            queries, keys = rotate(queries), rotate(keys)
        inputs, window = (queries, keys, values), self.window if value is None else None
        seed = self.weight_dropout.seed_generator.next() if training and self.dropout else None
        length, other = ops.shape(queries)[2], ops.shape(keys)[2]
        if return_attention_weights or not uses_blocks(length, other, self.longest):
            output, weights = self._dense_attention(*inputs, attention_mask, window, seed)
        else:
            output, weights = self._block_attention(*inputs, attention_mask, window, seed), None
        batch, length = ops.shape(query)[:2]
        joined = ops.reshape(
            ops.transpose(output, (0, 2, 1, 3)), (batch, length, self.num_heads * self.head_size)
        )
        output = ops.matmul(joined, self.output_kernel)
        if self.use_bias:
            output = output + self.output_bias
            if attention_mask is not None:
                output = output * ops.cast(self._open_rows(attention_mask, window), output.dtype)
        return (output, weights) if return_attention_weights else output

    def _dense_attention(self, queries, keys, values, mask, window, seed):
        if window is not None:
            pairs = window_mask(ops.shape(queries)[2], window, self.num_globals)
            mask = pairs if mask is None else pairs * ops.cast(_as_3d(mask), "int32")
        return scaled_dot_product_attention(queries, keys, values, mask, self._dropout_function(seed))

    def _block_attention(self, queries, keys, values, mask, window, seed):
        if window is None:
            rate = 0.0 if seed is None else self.dropout
            return blockwise_attention(queries, keys, values, mask, rate, seed)
        if mask is not None and len(mask.shape) == 3:
            # A mask [B, T, S] takes as much memory as blocks would save.
            return self._dense_attention(queries, keys, values, mask, window, seed)[0]
        dropout = self._dropout_function(seed)
        return windowed_attention(queries, keys, values, window, self.num_globals, mask, dropout)

    def _dropout_function(self, seed):
        if seed is None:
            return None
        return lambda weights: keras.random.dropout(weights, self.dropout, seed=GivenSeed(seed))

    def _open_rows(self, mask, window):
        if window is None:
            return open_rows(mask)
        if len(mask.shape) == 2:
            return open_window_rows(mask, window, self.num_globals)
        pairs = window_mask(ops.shape(mask)[1], window, self.num_globals)
        return open_rows(pairs * ops.cast(mask, "int32"))

    def _project(self, query, value):
        """Queries [B, N, T, H], keys and values [B, N, S, H]."""
        if self.fused and value is None:
            return self._heads(query, self.query_key_value_kernel, 0, 3)
        if self.fused:
            width = self.num_heads * self.head_size
            query_kernel = self.query_key_value_kernel[:, :width]
            key_value_kernel = self.query_key_value_kernel[:, width:]
        else:
            value = query if value is None else value
            query_kernel, key_value_kernel = self.query_kernel, self.key_value_kernel
        return (*self._heads(query, query_kernel, 0, 1), *self._heads(value, key_value_kernel, 1, 3))

    def _heads(self, inputs, kernel, first: int, last: int):
        """Projections first … last - 1 of (query, key, value), each [B, N, T, H].

        One product, then a split into tensors of at most four axes: mobile runtimes compute these efficiently.
        """
        projected = ops.matmul(inputs, kernel)
        if self.use_bias:
            projected = projected + ops.reshape(self.query_key_value_bias[first:last], (-1,))
        batch, length = ops.shape(inputs)[:2]
        parts = ops.split(projected, last - first, axis=-1) if last - first > 1 else [projected]
        shape = (batch, length, self.num_heads, self.head_size)
        return [ops.transpose(ops.reshape(part, shape), (0, 2, 1, 3)) for part in parts]


def stack_heads(weights: Sequence):
    """Stacks the attention weights float32 [B, N, T, S] of L blocks to [B, L, N, T, S]; missing heads are zero."""
    num_heads = max(each.shape[1] for each in weights)
    missing = [num_heads - each.shape[1] for each in weights]
    padded = [
        ops.pad(each, ((0, 0), (0, count), (0, 0), (0, 0))) if count else each
        for each, count in zip(weights, missing, strict=True)
    ]
    return ops.stack(padded, axis=1)
