"""CRF likelihood: the score of a path relative to the sum over all paths, with exact gradients.

The gradient of the log-partition is known in closed form: the expected counts of tags and transitions. It is computed
together with the sum instead of by differentiating a loop; `docs/decisions/007-crf-formulation.md` explains why.
"""

import math

from keras import ops

from kmha.layers.crf import Potentials, fold_boundaries, path_score
from kmha.layers.crf_decoding import log_sum, run_chains, sums

# Of numbers in [0, 1], float32 loses those below exp(-87). As long as no divisor is below SAFE, the loss is less than
# exp(-23) K² of the total, which is less than the rounding error of float32.
SAFE = math.exp(-32)
TINY = 1e-37


def log_likelihood(potentials: Potentials, tag_ids):
    """The log-probability of a path of each sentence.

    Args:
        potentials: Potentials of B sentences.
        tag_ids: int32 [B, W]; any value at padding.

    Returns:
        float32 [B], at most 0 up to rounding; 0 for a sentence without words. For gradients see `log_partition`.
    """
    return path_score(potentials, tag_ids) - log_partition(potentials)


def log_partition(potentials: Potentials):
    """The log-sum-exp of the scores of all paths, float32 [B]; 0 for a sentence without words.

    Has exact first derivatives with respect to all potentials, and no second derivatives.
    """
    emissions, mask = fold_boundaries(potentials)
    transitions = ops.cast(potentials.transitions, "float32")
    constant = Potentials(*(ops.stop_gradient(ops.convert_to_tensor(part)) for part in potentials))
    total, tags, pairs = map(ops.stop_gradient, expected_counts(constant))
    # Linear in the potentials with the gradients of the sum; contributes 0 to the value.
    linear = ops.sum(tags * emissions, axis=(1, 2)) + ops.sum(pairs * transitions, axis=(1, 2))
    return total + (linear - ops.stop_gradient(linear))


def expected_counts(potentials: Potentials):
    """Log-partition and expected counts.

    Returns:
        The log-partition float32 [B]; the probability of each tag at each word, float32 [B, W, K]; the expected number
        of transitions from the row's tag to the column's tag, float32 [B, K, K].
    """
    safe, total, tags, pairs = _by_products(potentials)
    return ops.cond(safe, lambda: (total, tags, pairs), lambda: _by_logarithms(potentials))


def _by_products(potentials: Potentials):
    """Whether the result is accurate, and the result of `expected_counts`, from products of numbers in [0, 1].

    Both directions run in one loop, as two halves of a row: one large product is faster than two small ones.
    """
    emissions, mask = fold_boundaries(potentials)
    width, num_tags = ops.shape(emissions)[1], emissions.shape[-1]
    top, highest = ops.max(emissions, axis=-1), ops.max(potentials.transitions)
    words, kernel = ops.exp(emissions - ops.expand_dims(top, -1)), ops.exp(potentials.transitions - highest)

    # Reverses each row within its length, so that the backward direction has its padding at the end too.
    ends = ops.cast(ops.sum(mask, axis=1, keepdims=True), "int32") - 1
    reverse = (
        ops.maximum(ends - ops.arange(width), 0) + ops.expand_dims(ops.arange(ops.shape(mask)[0]), -1) * width
    )
    both = ops.concatenate([words, _reordered(words, reverse)], axis=-1)
    forward, backward = ops.split(_products(both, _block_diagonal(kernel)), 2, axis=-1)
    forward_scale, backward_scale = (ops.max(x, axis=-1) for x in (forward, backward))
    forward = forward / ops.expand_dims(ops.maximum(forward_scale, TINY), -1)
    backward = _reordered(backward / ops.expand_dims(ops.maximum(backward_scale, TINY), -1), reverse)

    continues = ops.pad(mask[:, 1:], ((0, 0), (0, 1)))
    rows = ops.reshape(backward, (-1, num_tags))
    rest = ops.reshape(ops.matmul(rows, ops.transpose(kernel)), (-1, width, num_tags))
    rest = ops.pad(rest[:, 1:], ((0, 0), (0, 1), (0, 0)))
    tags = forward * ops.where(ops.expand_dims(continues, -1) > 0, rest, 1.0)
    whole = ops.sum(tags, axis=-1)
    share = ops.expand_dims(mask / ops.maximum(whole, TINY), -1)
    pairs = kernel * ops.einsum("bwi,bwj->bij", (forward * share)[:, :-1], (backward * _column(mask))[:, 1:])

    least = ops.minimum(ops.minimum(forward_scale, backward_scale), whole)
    safe = ops.all(ops.where(mask > 0, least, 1.0) >= SAFE)
    logs = top + ops.log(ops.maximum(forward_scale, TINY)) + continues * highest
    logs = logs + (1.0 - continues) * ops.log(ops.maximum(whole, TINY))
    return safe, ops.sum(mask * logs, axis=1), tags * share, pairs


def _products(words, kernel):
    """Forward products: the previous row, scaled to a maximum of 1, times the kernel, times the word.

    Args:
        words: float32 [B, W, 2 K].
        kernel: float32 [2 K, 2 K].

    Returns:
        float32 [B, W, 2 K]; the maximum of each half is its scale.
    """
    words = ops.transpose(words, (1, 0, 2))
    sizes = ops.shape(words)[1], 2, words.shape[-1] // 2

    def step(row, word):
        halves = ops.reshape(row, sizes)
        halves = halves / ops.maximum(ops.max(halves, axis=-1, keepdims=True), TINY)
        row = ops.matmul(ops.reshape(halves, ops.shape(row)), kernel) * word
        return row, row

    # One additional step, because not every backend supports a loop without steps.
    _, after = ops.scan(step, words[0], ops.roll(words, -1, axis=0))
    return ops.transpose(ops.concatenate([words[:1], after[:-1]], axis=0), (1, 0, 2))


def _block_diagonal(kernel):
    nothing = ops.zeros_like(kernel)
    upper, lower = [kernel, nothing], [nothing, ops.transpose(kernel)]
    return ops.concatenate([ops.concatenate(upper, axis=1), ops.concatenate(lower, axis=1)], axis=0)


def _reordered(words, order):
    """The words [B, W, K] in the order [B, W] of indices into all rows."""
    return ops.take(ops.reshape(words, (-1, words.shape[-1])), order, axis=0)


def _column(mask):
    return ops.expand_dims(mask, -1)


def _by_logarithms(potentials: Potentials):
    """The result of `expected_counts` for any potentials: slower, with a [K, K] matrix for each word in memory."""
    emissions, mask = fold_boundaries(potentials)
    after, before = (ops.transpose(x, (1, 0, 2)) for x in run_chains(sums(potentials)))
    scores = after + before - emissions
    tags = ops.exp(scores - _column(log_sum(scores))) * _column(mask)
    pairs = potentials.transitions + ops.expand_dims(after[:, 1:], 2)  # [B, W - 1, K, K]
    rest = log_sum(pairs)
    continues = _column(mask[:, 1:])
    given = ops.exp(pairs - _column(rest))
    scale = ops.max(emissions + ops.pad(rest * continues, ((0, 0), (0, 1), (0, 0))), axis=-1)
    total = ops.sum(scale * mask, axis=1) + log_sum(after[:, 0]) * mask[:, 0]
    return total, tags, ops.einsum("bwi,bwij->bij", tags[:, :-1] * continues, given)
