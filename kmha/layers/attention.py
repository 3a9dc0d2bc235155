"""Multi-head attention: the math as functions, and a layer that has the weights.

`docs/concepts/attention.md` derives it and shows common errors.
"""

import math
from collections.abc import Callable, Sequence

import keras
from keras import ops

from kmha.layers.attention_parts import mask_bias, uses_blocks
from kmha.layers.configurable_layer import ConfigurableLayer
from kmha.layers.dropout import Dropout, drop_values
from kmha.layers.eight_bit import form_of, project, record_inputs
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
    return mask * causal_mask(*ops.shape(mask)[1:]) if causal else mask


def causal_mask(length, other):
    """The mask int32 [1, T, S] in which position t attends to positions 0 … t, from T = `length` and S = `other`."""
    rows, columns = ops.expand_dims(ops.arange(length), 1), ops.expand_dims(ops.arange(other), 0)
    return ops.expand_dims(ops.cast(rows >= columns, "int32"), 0)


def merge_masks(*masks):
    """The mask of the places that all masks leave open; None is no mask.

    From masks int32 or bool [B, S], [B, T, S] and [B, N, T, S] to the largest of these ranks, int32; a single mask is
    returned unchanged.
    """
    found = [mask for mask in masks if mask is not None]
    if len(found) < 2:
        return found[0] if found else None
    rank, merged = max(len(mask.shape) for mask in found), 1
    for mask in found:
        mask = ops.cast(mask, "int32")
        while len(mask.shape) < rank:
            mask = ops.expand_dims(mask, 1)
        merged = merged * mask
    return merged


def scaled_dot_product_attention(query, key, value, mask=None, dropout: Callable | None = None):
    """Scaled dot-product attention: softmax(Q Kᵀ / sqrt(H)) V over unmasked keys.

    Args:
        query: float [B, N, T, H].
        key: float [B, N, S, H].
        value: float [B, N, S, H].
        mask: int32 or bool [B, S], [B, T, S] or [B, N, T, S]; 1 = attend. None: no mask.
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
        mask = _as_4d(mask)
        attended = _softmax(scores + mask_bias(mask))
        row_is_open = _any_key(mask)  # [B, 1 or N, 1 or T, 1]
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
    """Which query rows attend to something in at least one head: float32 [B, 1 or T, 1], from a mask of any rank."""
    rows = _any_key(_as_4d(mask))
    return rows[:, 0] if len(mask.shape) < 4 else ops.max(rows, axis=1)


def _any_key(mask):
    return ops.cast(ops.any(mask, axis=-1, keepdims=True), "float32")


def _softmax(scores):
    # Keras warns about a softmax over one value; here this is a text of one token and correct.
    return ops.exp(scores - scores) if scores.shape[-1] == 1 else ops.softmax(scores, axis=-1)


def _as_4d(mask):
    """The mask bool [B, 1 or N, 1 or T, S], from [B, S], [B, T, S] or [B, N, T, S]."""
    if len(mask.shape) not in (2, 3, 4):
        raise ValueError(
            f"attention_mask must be [B, S], [B, T, S] or [B, N, T, S], got shape {tuple(mask.shape)}"
        )
    mask = ops.cast(mask, "bool")
    while len(mask.shape) < 4:
        mask = ops.expand_dims(mask, 1)
    return mask


# Projections by number: query 0, key 1, value 2. A kernel has those from the first number up to the second.
_KERNELS = {(0, 3): "query_key_value", (0, 1): "query", (1, 3): "key_value", (1, 2): "key", (2, 3): "value"}


@keras.saving.register_keras_serializable(package="kmha")
class MultiHeadAttention(ConfigurableLayer):
    """Multi-head attention from each query position to all unmasked key positions.

    concat(head_1 … head_N) W_o + b_o, head_n = softmax(Q_n K_nᵀ / sqrt(H)) V_n; softmax in float32. Self-attention
    projects queries, keys and values with one fused kernel.

    Args:
        num_heads: Number of attention heads.
        key_dim: Size of one head of queries and keys, H; None: D / num_heads.
        value_dim: Size of one head of values; None: that of the keys.
        dropout: Probability of dropping an attention weight, in [0, 1).
        use_bias: Whether the projections add a bias.
        output_shape: Shape of the output after [B, T], an integer or several; None: D.
        kernel_initializer: Initializer of the projections.
        seed: Seed of the dropout; None: random.
        rotary: Whether queries and keys are rotated by their position (see `positions.rotate`).
        window: Self-attention only: maximum distance of two positions that attend to each other; None: no limit.
        num_globals: With a window, the number of first positions that attend to all positions, and all to them.
        longest: Maximum sequence length, so that graphs need not support longer ones; None: unlimited.

    Call:
        query: float [B, T, D].
        value: float [B, S, E]; None: query (self-attention).
        key: float [B, S, F]; None: value.
        query_mask: int32 or bool [B, T]; 1 = a real position. The output is zero at the others; in self-attention no
            position attends to them.
        value_mask: int32 or bool [B, S]; 1 = attend.
        key_mask: As value_mask; both apply. Keras fills these three masks from its tensors, for example after
            `keras.layers.Embedding(mask_zero=True)`; the output has the mask of the query.
        attention_mask: int32 or bool [B, T, S], [B, S] or, for each head, [B, N, T, S]; 1 = attend.
        return_attention_scores: Whether to return the weights (before dropout) too; without them long sequences are
            computed in blocks, with the same results.
        use_causal_mask: Whether position t attends only to positions 0 … t.
        return_attention_weights: The same as return_attention_scores, named as in the models.
        mask: The query's mask if Keras fills it in a call with the query alone.
        Returns float [B, T, D] (or output_shape after [B, T]), and with the weights also float32 [B, N, T, S]. Fully
        masked rows are zero in both, whatever the biases.

    Raises:
        ValueError: D is not divisible by num_heads and key_dim is None, a size is not a positive integer, keys and
            values differ in length, or a shape has another rank.

    Differs: from keras.layers.MultiHeadAttention: fused projection; zeros instead of the mean for fully masked rows;
        equal outputs with and without returned weights; masks [B, S] instead of [T, S]. `docs/how-to/own-model.md`
        lists all differences.
    Source: Vaswani et al. 2017, §3.2.2, arXiv:1706.03762.
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int | None = None,
        value_dim: int | None = None,
        dropout: float = 0.0,
        use_bias: bool = True,
        output_shape: int | Sequence[int] | None = None,
        kernel_initializer="glorot_uniform",
        seed: int | None = None,
        rotary: bool = False,
        window: int | None = None,
        num_globals: int = 0,
        longest: int | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.output_sizes = (output_shape,) if isinstance(output_shape, int) else output_shape
        if self.output_sizes is not None and not isinstance(self.output_sizes, (list, tuple)):
            raise ValueError(f"output_shape must be an integer or several, got {output_shape!r}")
        for name, size in (
            ("num_heads", num_heads),
            ("key_dim", 1 if key_dim is None else key_dim),
            ("value_dim", 1 if value_dim is None else value_dim),
            *(("output_shape", each) for each in self.output_sizes or ()),
        ):
            if not isinstance(size, int) or size <= 0:
                raise ValueError(f"{name} must be a positive integer, got {size!r}")
        if window is not None and window < 0:
            raise ValueError(f"window must be at least 0, got {window}")
        self.supports_masking = True
        self.num_heads, self.key_dim, self.value_dim = num_heads, key_dim, value_dim
        self.dropout, self.seed = dropout, seed
        self.rotary = rotary
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.window, self.num_globals, self.longest = window, num_globals, longest
        self.weight_dropout = Dropout(dropout, seed=seed, name="weight_dropout", dtype=self.dtype_policy)

    def build(self, query_shape, value_shape=None, key_shape=None):
        """Creates the projections; those of inputs and heads of the same sizes share a kernel."""
        value_shape = query_shape if value_shape is None else value_shape
        key_shape = value_shape if key_shape is None else key_shape
        _check_lengths(value_shape, key_shape)
        if len(query_shape) != 3:
            raise ValueError(
                f"query must be [B, T, D], got shape {tuple(query_shape)}: join other axes with B or T by a reshape"
            )
        dims = query_shape[-1], key_shape[-1], value_shape[-1]
        if self.key_dim is None and dims[0] % self.num_heads:
            raise ValueError(
                f"num_heads must divide the hidden size, got hidden size {dims[0]} and"
                f" num_heads {self.num_heads}; or give key_dim"
            )
        self.head_size = self.key_dim or dims[0] // self.num_heads
        self.value_size = self.value_dim or self.head_size
        width, value_width = self.num_heads * self.head_size, self.num_heads * self.value_size
        self.ends = (0, width, 2 * width, 2 * width + value_width)
        if width != value_width or dims[1] != dims[2]:
            self.spans = ((0, 1), (1, 2), (2, 3))
        else:
            self.spans = ((0, 3),) if dims[0] == dims[1] else ((0, 1), (1, 3))
        for first, last in self.spans:
            # Two-dimensional, because initializers compute fan-in and fan-out from the shape.
            name, shape = f"{_KERNELS[first, last]}_kernel", (dims[first], self.ends[last] - self.ends[first])
            setattr(self, name, self._weight(name, shape))
        output_dim = math.prod(self.output_sizes or dims[:1])
        self.output_kernel = self._weight("output_kernel", (value_width, output_dim))
        if self.use_bias:
            shape = (3, self.num_heads, self.head_size) if width == value_width else self.ends[-1:]
            self.query_key_value_bias = self.add_weight(
                name="query_key_value_bias", shape=shape, initializer="zeros"
            )
            self.output_bias = self.add_weight(name="output_bias", shape=(output_dim,), initializer="zeros")
        self.weight_dropout.build(None)

    def _weight(self, name: str, shape: tuple[int, int]):
        # An initializer instance repeats its values, so each kernel gets its own.
        return self.add_weight(name=name, shape=shape, initializer=self.kernel_initializer.clone())

    def call(
        self,
        query,
        value=None,
        key=None,
        query_mask=None,
        value_mask=None,
        key_mask=None,
        attention_mask=None,
        return_attention_scores=False,
        training=None,
        use_causal_mask=False,
        return_attention_weights=False,
        mask=None,
    ):
        """See the class."""
        query_mask = mask if query_mask is None else query_mask
        if value is None and value_mask is None:
            value_mask = query_mask
        key = None if key is value else key
        value = None if value is query and key is None else value
        queries, keys, values = self._project(query, value, key)
        batch, length = ops.shape(query)[:2]
        other = length if value is None else ops.shape(value)[1]
        _check_batch(attention_mask, query)
        causal = causal_mask(length, other) if use_causal_mask else None
        attention_mask = merge_masks(value_mask, key_mask, attention_mask, causal)
        if self.rotary:
            queries, keys = rotate(queries), rotate(keys)
        inputs, window = (queries, keys, values), self.window if value is None and key is None else None
        seed = self.weight_dropout.seed_generator.next() if training and self.dropout else None
        with_weights = return_attention_scores or return_attention_weights
        if with_weights or not uses_blocks(length, other, self.longest):
            output, weights = self._dense_attention(*inputs, attention_mask, window, seed)
        else:
            output, weights = self._block_attention(*inputs, attention_mask, window, seed), None
        width = self.num_heads * self.value_size
        joined = ops.reshape(ops.transpose(output, (0, 2, 1, 3)), (-1, width))
        record_inputs(self.output_kernel, joined)
        output = project(joined, form_of(self.output_kernel, self.output_kernel))
        if self.use_bias:
            output = output + self.output_bias
        output = ops.reshape(output, (batch, length, output.shape[-1]))
        if self.use_bias and attention_mask is not None:
            output = output * ops.cast(self._open_rows(attention_mask, window), output.dtype)
        if query_mask is not None:
            rows = ops.expand_dims(ops.cast(query_mask, output.dtype), -1)
            output = output * rows
            weights = weights * ops.expand_dims(ops.cast(rows, "float32"), 1) if with_weights else None
        if self.output_sizes and len(self.output_sizes) > 1:
            output = ops.reshape(output, (batch, length, *self.output_sizes))
        return (output, weights) if with_weights else output

    def _dense_attention(self, queries, keys, values, mask, window, seed):
        if window is not None:
            mask = merge_masks(window_mask(ops.shape(queries)[2], window, self.num_globals), mask)
        return scaled_dot_product_attention(queries, keys, values, mask, self._dropout_function(seed))

    def _block_attention(self, queries, keys, values, mask, window, seed):
        if mask is not None and len(mask.shape) > (3 if window is None else 2):
            # A mask of the weights' size takes as much memory as blocks would save.
            return self._dense_attention(queries, keys, values, mask, window, seed)[0]
        if window is None:
            rate = 0.0 if seed is None else self.dropout
            return blockwise_attention(queries, keys, values, mask, rate, seed)
        dropout = self._dropout_function(seed)
        return windowed_attention(queries, keys, values, window, self.num_globals, mask, dropout)

    def _dropout_function(self, seed):
        if seed is None:
            return None
        return lambda weights: drop_values(weights, self.dropout, seed)

    def _open_rows(self, mask, window):
        if window is None:
            return open_rows(mask)
        if len(mask.shape) == 2:
            return open_window_rows(mask, window, self.num_globals)
        return open_rows(merge_masks(window_mask(ops.shape(mask)[-1], window, self.num_globals), mask))

    def _project(self, query, value, key):
        """Queries [B, N, T, H], keys [B, N, S, H] and values [B, N, S, value_size]; value None: self-attention."""
        if value is None and key is None and len(self.spans) == 1:
            return self._heads(query, 0, 3)
        value = query if value is None else value
        queries = self._heads(query, 0, 1)
        if key is None and len(self.spans) < 3:
            return (*queries, *self._heads(value, 1, 3))
        return (*queries, *self._heads(value if key is None else key, 1, 2), *self._heads(value, 2, 3))

    def _kernel(self, first: int, last: int):
        """The kernel of projections first … last - 1, or these columns of the kernel that has them."""
        start, stop = next(span for span in self.spans if span[0] <= first and last <= span[1])
        kernel = getattr(self, f"{_KERNELS[start, stop]}_kernel")
        if (start, stop) == (first, last):
            return kernel
        return kernel[:, self.ends[first] - self.ends[start] : self.ends[last] - self.ends[start]]

    def _heads(self, inputs, first: int, last: int):
        """Projections first … last - 1 of (query, key, value), each [B, N, T, H].

        One product of two axes, because one of three has more operations, for shapes. Then a split into tensors of at
        most four axes: mobile runtimes compute these efficiently.
        """
        kernel = self._kernel(first, last)
        if last - first == 3:
            record_inputs(kernel, inputs)
            kernel = form_of(kernel, kernel)
        batch, length = ops.shape(inputs)[:2]
        projected = project(ops.reshape(inputs, (-1, inputs.shape[-1])), kernel)
        if self.use_bias:
            bias = ops.reshape(self.query_key_value_bias, (-1,))
            if last - first < 3:
                bias = bias[self.ends[first] : self.ends[last]]
            projected = projected + bias
        # tf2onnx writes the transposition of a single head as a reshape that copies the sizes of these axes.
        projected = ops.reshape(projected, (batch, length, projected.shape[-1]))
        parts = ops.split(projected, last - first, axis=-1) if last - first > 1 else [projected]
        shape = (batch, length, self.num_heads, self.value_size if first == 2 else self.head_size)
        return [ops.transpose(ops.reshape(part, shape), (0, 2, 1, 3)) for part in parts]

    def compute_output_shape(self, query_shape, value_shape=None, key_shape=None):
        """[B, T, D], or output_shape after [B, T]."""
        if value_shape is not None and key_shape is not None:
            _check_lengths(value_shape, key_shape)
        return (*query_shape[:-1], *(self.output_sizes or query_shape[-1:]))

    def compute_output_spec(self, *args, **kwargs):
        """Traces the call, because the weights are a second output on request."""
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    def get_config(self):
        """The constructor's arguments, as JSON values."""
        sizes = None if self.output_sizes is None else list(self.output_sizes)
        return {**super().get_config(), "output_shape": sizes}

    @classmethod
    def from_config(cls, config):
        """Creates the layer from `get_config`, in which earlier versions wrote key_dim as head_dim."""
        return super().from_config(
            {"key_dim" if name == "head_dim" else name: value for name, value in config.items()}
        )


def _check_lengths(value_shape, key_shape) -> None:
    if tuple(value_shape[1:-1]) != tuple(key_shape[1:-1]):
        raise ValueError(
            "the lengths of value and key must be equal, got shapes"
            f" {tuple(value_shape)} and {tuple(key_shape)}"
        )


def _check_batch(mask, query) -> None:
    """Refuses a mask [T, S] of keras.layers.MultiHeadAttention, where it differs from a mask [B, S]."""
    if mask is None or len(mask.shape) != 2 or mask.shape[0] in (None, 1):
        return
    if query.shape[0] not in (None, mask.shape[0]):
        raise ValueError(
            f"an attention_mask of two axes must be [B, S], got shape {tuple(mask.shape)} for a batch of"
            f" {query.shape[0]}; for a mask [T, S] give mask[None], [1, T, S]"
        )


def stack_heads(weights: Sequence):
    """Stacks the attention weights float32 [B, N, T, S] of L blocks to [B, L, N, T, S]; missing heads are zero."""
    num_heads = max(each.shape[1] for each in weights)
    missing = [num_heads - each.shape[1] for each in weights]
    padded = [
        ops.pad(each, ((0, 0), (0, count), (0, 0), (0, 0))) if count else each
        for each, count in zip(weights, missing, strict=True)
    ]
    return ops.stack(padded, axis=1)
