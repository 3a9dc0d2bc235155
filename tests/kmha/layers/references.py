"""References for the layers: the formulas in plain float64 NumPy."""

import itertools
import math

import numpy as np

from kmha.layers.crf import FORBIDDEN, Potentials


def loop_attention(query, key, value, mask=None):
    """Attention by explicit loops over batch, head and row.

    Args:
        query: [B, N, T, H].
        key: [B, N, S, H].
        value: [B, N, S, H].
        mask: [B, S] or [B, T, S], 1 = attend; None attends everywhere.

    Returns:
        Output [B, N, T, H] and weights [B, N, T, S], float64.
    """
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    batch, heads, length, size = query.shape
    if mask is None:
        mask = np.ones((batch, length, key.shape[2]))
    elif np.ndim(mask) == 2:
        mask = np.repeat(np.asarray(mask)[:, None, :], length, axis=1)
    output = np.zeros(query.shape)
    weights = np.zeros((batch, heads, length, key.shape[2]))
    for b in range(batch):
        for n in range(heads):
            for t in range(length):
                columns = [s for s in range(key.shape[2]) if mask[b, t, s]]
                if not columns:
                    continue
                scores = [float(query[b, n, t] @ key[b, n, s]) / math.sqrt(size) for s in columns]
                top = max(scores)
                powers = [math.exp(score - top) for score in scores]
                for s, power in zip(columns, powers, strict=True):
                    weights[b, n, t, s] = power / sum(powers)
                    output[b, n, t] += weights[b, n, t, s] * value[b, n, s]
    return output, weights


def loop_multi_head_attention(layer, query, value=None, mask=None):
    """The result of `MultiHeadAttention`, from the layer's weights: output [B, T, D] and weights [B, N, T, S]."""
    value = query if value is None else value
    (query_kernel, key_kernel, value_kernel), output_kernel, biases, output_bias = projections(layer)
    queries, keys, values = [
        np.stack([np.asarray(x, np.float64) @ kernel[:, n] + bias[n] for n in range(layer.num_heads)], axis=1)
        for x, kernel, bias in zip(
            (query, value, value), (query_kernel, key_kernel, value_kernel), biases, strict=True
        )
    ]
    mixed, weights = loop_attention(queries, keys, values, mask)
    output = sum(mixed[:, n] @ output_kernel[n] for n in range(layer.num_heads)) + output_bias
    return output * (weights.sum(axis=(1, 3)) > 0)[..., None], weights


def projections(layer):
    """The weights of a `MultiHeadAttention`, apart.

    Returns:
        Kernels of query, key, value [inner, N, H] each; output kernel [N, H, D]; their biases [N, H]; bias [D].
    """
    named = {weight.name: weight.numpy().astype(np.float64) for weight in layer.weights}
    heads = (layer.num_heads, -1)
    output_kernel = named.pop("output_kernel")
    # "key_value_kernel" has two projections, side by side.
    joined = [(name.count("_"), kernel) for name, kernel in named.items() if name.endswith("kernel")]
    kernels = [k.reshape(len(k), *heads) for count, joint in joined for k in np.split(joint, count, axis=1)]
    widths = [kernel[0].size for kernel in kernels]
    bias = named.get("query_key_value_bias", np.zeros(sum(widths))).ravel()
    biases = [part.reshape(heads) for part in np.split(bias, np.cumsum(widths)[:-1])]
    output_kernel = output_kernel.reshape(*heads, output_kernel.shape[-1])
    return kernels, output_kernel, biases, named.get("output_bias", np.zeros(1))


def normalize(inputs, gain, offset, epsilon):
    """Layer normalization over the last axis."""
    centered = inputs - inputs.mean(axis=-1, keepdims=True)
    return centered / np.sqrt((centered**2).mean(axis=-1, keepdims=True) + epsilon) * gain + offset


def activate(name, inputs):
    """The three activations, value by value."""
    forms = {
        "relu": lambda x: max(x, 0.0),
        "gelu": lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))),
        "gelu_tanh": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    }
    return np.vectorize(forms[name])(np.asarray(inputs, np.float64))


def every_path(emissions, transitions, start, end):
    """All ways to tag a sentence of at least one word, and their scores.

    Args:
        emissions: [W, K], of the words of one sentence.
        transitions: [K, K].
        start: [K].
        end: [K].

    Returns:
        Paths int [K ** W, W], in the order of counting, and scores float64 [K ** W].
    """
    emissions, transitions, start, end = (
        np.asarray(x, np.float64) for x in (emissions, transitions, start, end)
    )
    length, num_tags = emissions.shape
    paths = np.array(list(itertools.product(range(num_tags), repeat=length)))
    scores = start[paths[:, 0]] + end[paths[:, -1]]
    for t in range(length):
        scores = scores + emissions[t, paths[:, t]]
        if t > 0:
            scores = scores + transitions[paths[:, t - 1], paths[:, t]]
    return paths, scores


def log_of_sum(scores) -> float:
    """The logarithm of the sum of exponentials."""
    top = max(scores)
    return top + math.log(sum(math.exp(score - top) for score in scores))


def random_potentials(
    num_tags, lengths=(5, 0, 3, 1, 4, 2), width=None, forbidding=False, scale=1.0, seed=0, starts="[K]"
):
    """Potentials of sentences as NumPy arrays, and tags for them.

    Args:
        num_tags: K.
        lengths: Words of each sentence.
        width: W; None means the longest.
        forbidding: Whether some places are forbidden. Tag 0 may always be taken.
        scale: Standard deviation of the others.
        seed: Of the numbers.
        starts: Shape of the start: "[K]" or "[B, K]".

    Returns:
        `Potentials` and tag ids int32 [B, W].
    """
    rng = np.random.default_rng(seed)
    width = max(lengths, default=0) if width is None else width

    def draw(*shape, shut=False):
        values = scale * rng.normal(size=shape)
        closed = (rng.random(shape) < 0.4) if shut else np.zeros(shape, bool)
        closed[..., 0] = False
        return np.where(closed, FORBIDDEN, values).astype("float32")

    mask = (np.arange(width) < np.array(lengths)[:, None]).astype("int32")
    emissions = draw(len(lengths), width, num_tags)
    start = draw(*((len(lengths), num_tags) if starts == "[B, K]" else (num_tags,)), shut=forbidding)
    potentials = Potentials(
        emissions,
        mask,
        draw(num_tags, num_tags, shut=forbidding),
        start,
        draw(num_tags, shut=forbidding),
    )
    return potentials, rng.integers(0, num_tags, mask.shape).astype("int32")
