"""Linear-chain conditional random field: potentials, the layer with their weights, decoding and likelihood.

All computations are in float32, whatever the dtype policy.

Decoding is exact for any potentials. It is computed in log space, one word per step of a loop that TFLite and ONNX
support, with few ops per step. A queue replaces a TensorArray: each step takes its word from one end and appends the
result at the other. An additional tag replaces a padding mask. Scores are relative to the best of their word, so that
rounding errors do not grow with the length.

The gradient of the log-partition is known in closed form: the expected counts of tags and transitions. It is computed
together with the sum instead of by differentiating a loop; `docs/decisions/007-crf-formulation.md` explains why.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from kmha.layers.configurable_layer import ConfigurableLayer

# Finite, so that no difference of two is NaN. Its exponential is exactly 0, the sum over thousands of words is in the
# range of float32, and it is in the range of float16.
FORBIDDEN = -1e4


class Potentials(NamedTuple):
    """Unnormalized log-potentials of tags and of transitions; `FORBIDDEN` where the scheme forbids a transition."""

    emissions: Any  # float32 [B, W, K], of each tag at each word
    word_mask: Any  # int32 [B, W]; 1 = a word. Words are a prefix of the row
    transitions: Any  # float32 [K, K], from the row's tag to the column's tag
    start: Any  # float32 [K] or [B, K], of the first tag of a sentence
    end: Any  # float32 [K] or [B, K], of the last tag


def fold_boundaries(potentials: Potentials):
    """Emissions float32 [B, W, K] with start and end added to the first and last word, and the mask float32 [B, W].

    The score of a path is then a sum over words and adjacent words only; padding is zero.
    """
    mask = ops.cast(potentials.word_mask, "float32")
    positions = ops.cast(ops.arange(ops.shape(mask)[1]), "float32")
    first = mask * ops.cast(ops.equal(positions, 0.0), "float32")
    last = ops.cast(ops.equal(positions, ops.sum(mask, axis=1, keepdims=True) - 1.0), "float32")
    start, end = (ops.expand_dims(ops.cast(x, "float32"), -2) for x in (potentials.start, potentials.end))
    # Selected, not multiplied: this removes NaN at padding too.
    words = ops.where(ops.expand_dims(mask, -1) > 0, ops.cast(potentials.emissions, "float32"), 0.0)
    return words + ops.expand_dims(first, -1) * start + ops.expand_dims(last, -1) * end, mask


def path_score(potentials: Potentials, tag_ids):
    """The sum float32 [B] of the potentials of paths int32 [B, W], with any value at padding."""
    emissions, mask = fold_boundaries(potentials)
    num_tags = emissions.shape[-1]
    tag_ids = ops.cast(tag_ids, "int32") * ops.cast(mask, "int32")
    at_words = ops.sum(ops.one_hot(tag_ids, num_tags, dtype="float32") * emissions, axis=(1, 2))
    pairs = tag_ids[:, :-1] * num_tags + tag_ids[:, 1:]
    between = ops.take(ops.reshape(ops.cast(potentials.transitions, "float32"), (-1,)), pairs, axis=0)
    return at_words + ops.sum(between * mask[:, 1:], axis=1)


@keras.saving.register_keras_serializable(package="kmha")
class CRF(ConfigurableLayer):
    """Adds trained transition scores and a scheme's forbidden transitions to the emissions.

    Args:
        num_tags: K.
        allowed: [K, K] of 0 and 1: whether the row's tag may be followed by the column's tag; None: all.
        allowed_start: [K] of 0 and 1: whether a sentence may start with the tag; None: all.
        allowed_end: [K] of 0 and 1: whether a sentence may end with the tag; None: all.

    Call:
        emissions: float [B, W, K].
        word_mask: int32 or bool [B, W]; 1 = a word. Words are a prefix of the row.
        Returns `Potentials`, all float32, for `log_likelihood` and `decode`.

    Raises:
        ValueError: A shape does not fit K, or a number is neither 0 nor 1.
    Source: Lafferty et al. 2001; with start and end: Lample et al. 2016, §3.1, arXiv:1603.01360.
    """

    def __init__(
        self,
        num_tags: int,
        allowed: Sequence[Sequence[int]] | None = None,
        allowed_start: Sequence[int] | None = None,
        allowed_end: Sequence[int] | None = None,
        **kwargs,
    ):
        # No autocast: a 16-bit policy would round the emissions.
        super().__init__(autocast=False, **kwargs)
        if num_tags < 1:
            raise ValueError(f"num_tags must be at least 1, got {num_tags}")
        self.num_tags = num_tags
        self.allowed = _checked("allowed", allowed, (num_tags, num_tags))
        self.allowed_start = _checked("allowed_start", allowed_start, (num_tags,))
        self.allowed_end = _checked("allowed_end", allowed_end, (num_tags,))

    def build(self, emissions_shape=None, word_mask_shape=None):
        """Creates the weights as zeros: the score of an allowed path is initially that of its emissions."""
        if emissions_shape is not None and (
            len(emissions_shape) != 3 or emissions_shape[-1] != self.num_tags
        ):
            raise ValueError(
                f"emissions must be [B, W, {self.num_tags}], a score for each of the {self.num_tags} tags,"
                f" got shape {tuple(emissions_shape)}"
            )
        if word_mask_shape is not None and len(word_mask_shape) != 2:
            raise ValueError(f"word_mask must be [B, W], got shape {tuple(word_mask_shape)}")
        self.transitions = self._weight("transitions", (self.num_tags, self.num_tags))
        self.start = self._weight("start", (self.num_tags,))
        self.end = self._weight("end", (self.num_tags,))

    def _weight(self, name: str, shape: tuple[int, ...]):
        return self.add_weight(name=name, shape=shape, initializer="zeros", dtype="float32")

    def call(self, emissions, word_mask):
        """See the class."""
        return Potentials(
            ops.cast(emissions, "float32"),
            ops.cast(word_mask, "int32"),
            _where_allowed(self.transitions, self.allowed),
            _where_allowed(self.start, self.allowed_start),
            _where_allowed(self.end, self.allowed_end),
        )


def _checked(name: str, given, shape: tuple[int, ...]):
    """The argument as nested lists of 0 and 1, which JSON can represent."""
    if given is None:
        return None
    try:
        array = np.asarray(given)
    except ValueError:
        raise ValueError(f"{name} must have shape {shape}, got rows of different lengths") from None
    if array.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {array.shape}")
    others = sorted({str(value) for value in array.ravel().tolist() if value not in (0, 1)})
    if others:
        raise ValueError(f"{name} must contain 0 and 1 only, got {', '.join(others)}")
    return array.astype(int).tolist()


def _where_allowed(weight, allowed):
    """The weight, with `FORBIDDEN` and no gradient where a transition is not allowed."""
    weight = ops.convert_to_tensor(weight)
    if allowed is None:
        return weight
    mask = np.asarray(allowed, "float32")
    return weight * mask + FORBIDDEN * (1 - mask)


# Score of a tag at padding, and of padding at a word: lower than that of any path with forbidden transitions.
IMPOSSIBLE = 100 * FORBIDDEN


class Decoded(NamedTuple):
    """The best path of each sentence with probabilities."""

    tag_ids: Any  # int32 [B, W], from `viterbi`
    marginals: Any  # float32 [B, W, K], from `marginals`
    path_probabilities: Any  # float32 [B, W], from `path_probabilities` for these tags


class Chain(NamedTuple):
    """One recursion over the words of a sentence."""

    scores: Any  # float32 [W, B, K + 1], added at each word; the last tag is padding
    # float32 [K + 1, K + 1], from the tag of the current word (row) to that of the word in the previous step.
    kernel: Any
    reduce: Callable  # reduction over the last axis: `highest` or `log_sum`
    backwards: bool  # whether the recursion goes from the last word to the first


def viterbi(potentials: Potentials):
    """The tags of the most probable path of each sentence, int32 [B, W]; 0 at padding.

    Of paths with equal scores the one with the lowest id at the first difference is chosen. The path has no forbidden
    transition if there is an allowed path with a score at most 1e4 lower: each step continues from the chosen tag, so
    ties and rounding cannot introduce one.
    """
    (best,) = run_chains([_from_the_end(potentials, highest)])
    return _follow_best(potentials, best)


def decode(potentials: Potentials) -> Decoded:
    """The results of `viterbi`, `marginals` and `path_probabilities`, with two loops in total."""
    best, after, before = run_chains([_from_the_end(potentials, highest), *sums(potentials)])
    tag_ids = _follow_best(potentials, best)
    return Decoded(
        tag_ids, _marginals(potentials, after, before), _path_probabilities(potentials, tag_ids, after)
    )


def marginals(potentials: Potentials):
    """The probability of each tag at each word over all paths, float32 [B, W, K]; zeros at padding."""
    return _marginals(potentials, *run_chains(sums(potentials)))


def path_probabilities(potentials: Potentials, tag_ids):
    """Float32 [B, W] of a path int32 [B, W]: P(tag 0 | sentence), then P(tag t | tag t - 1, sentence); 0 at padding.

    The product over a sentence is the probability of the path. The marginal of the tag at a span's first word, times
    these factors of its other words, is the probability that the whole span has these tags.
    """
    (after,) = run_chains([_from_the_end(potentials, log_sum)])
    return _path_probabilities(potentials, tag_ids, after)


def highest(scores):
    """The maximum over the last axis."""
    return ops.max(scores, axis=-1)


def log_sum(scores):
    """Log-sum-exp over the last axis."""
    top = ops.max(scores, axis=-1, keepdims=True)
    return ops.log(ops.sum(ops.exp(scores - top), axis=-1)) + ops.squeeze(top, axis=-1)


def sums(potentials: Potentials) -> list[Chain]:
    """The backward and the forward chain of log-sums over paths; both include the word itself."""
    kernel = ops.transpose(ops.cast(potentials.transitions, "float32"))
    before = Chain(_scores(potentials), _with_padding(kernel), log_sum, False)
    return [_from_the_end(potentials, log_sum), before]


def _from_the_end(potentials: Potentials, reduce: Callable) -> Chain:
    kernel = _with_padding(ops.cast(potentials.transitions, "float32"))
    return Chain(_scores(potentials), kernel, reduce, True)


def _scores(potentials: Potentials):
    """Emissions from `fold_boundaries` with padding as a tag, [W, B, K + 1]."""
    emissions, mask = fold_boundaries(potentials)
    mask = ops.expand_dims(mask, -1)
    joined = ops.concatenate([emissions + IMPOSSIBLE * (1.0 - mask), IMPOSSIBLE * mask], axis=-1)
    return ops.transpose(joined, (1, 0, 2))


def _with_padding(kernel):
    """Adds padding as a tag with free transitions; the scores keep it off words."""
    return ops.pad(kernel, ((0, 1), (0, 1)))


def run_chains(chains: Sequence[Chain]) -> list[Any]:
    """Runs several recursions of the same sizes in one loop.

    Returns:
        For each chain float32 [W, B, K]: the sum or the maximum over all paths from the start of the chain to a tag of
        a word, relative to the highest of the word. Any finite value at padding.
    """
    width = ops.shape(chains[0].scores)[0]

    def step(index, states, queues):
        found, turned = [], []
        for chain, state, queue in zip(chains, states, queues, strict=True):
            word = queue[-1] if chain.backwards else queue[0]
            state = word + chain.reduce(ops.expand_dims(state, 1) + chain.kernel)
            state = state - ops.max(state, axis=-1, keepdims=True)
            found.append(state)
            turned.append(_pushed(queue, state, chain.backwards))
        return index + 1, tuple(found), tuple(turned)

    at_padding = ops.one_hot(chains[0].scores.shape[-1] - 1, chains[0].scores.shape[-1], dtype="float32")
    outside = ops.zeros_like(chains[0].scores[0]) + IMPOSSIBLE * (1.0 - at_padding)
    begin = tuple(outside for _ in chains), tuple(chain.scores for chain in chains)
    return [queue[..., :-1] for queue in _loop(width, step, *begin)]


def _follow_best(potentials: Potentials, best):
    """Follows the best tag after the previous one from the first word on: int32 [B, W], from `best` [W, B, K]."""
    transitions = ops.cast(potentials.transitions, "float32")
    num_tags = best.shape[-1]

    def step(index, row, queue):
        # Not argmax: Keras' argmax handles signed zeros with ops that TFLite lacks.
        tag = ops.squeeze(ops.top_k(row + queue[0], 1)[1], axis=-1)
        taken = ops.one_hot(tag, num_tags, dtype="float32")
        return index + 1, ops.matmul(taken, transitions), _pushed(queue, taken, False)

    taken = _loop(ops.shape(best)[0], step, ops.zeros_like(best[0]), best)
    tags = ops.sum(taken * ops.arange(num_tags, dtype="float32"), axis=-1)
    return ops.cast(ops.transpose(tags), "int32") * ops.cast(potentials.word_mask, "int32")


def _loop(width, step: Callable, state, queue):
    """The queue after one step per word."""
    begin = (ops.zeros((), "int32"), state, queue)
    return ops.while_loop(lambda index, *_: index < width, step, begin)[2]


def _pushed(queue, value, backwards: bool):
    """Removes the element that was read from the queue [W, B, …] and adds the value at the other end."""
    value = ops.expand_dims(value, 0)
    return ops.concatenate([value, queue[:-1]] if backwards else [queue[1:], value], axis=0)


def _marginals(potentials: Potentials, after, before):
    emissions, mask = fold_boundaries(potentials)
    scores = ops.transpose(after + before, (1, 0, 2)) - emissions
    return _probabilities(scores) * ops.expand_dims(mask, -1)


def _path_probabilities(potentials: Potentials, tag_ids, after):
    mask = ops.cast(potentials.word_mask, "int32")
    tag_ids = ops.cast(tag_ids, "int32") * mask
    rows = ops.take(ops.cast(potentials.transitions, "float32"), tag_ids[:, :-1], axis=0)
    scores = ops.transpose(after, (1, 0, 2)) + ops.pad(rows, ((0, 0), (1, 0), (0, 0)))
    taken = ops.one_hot(tag_ids, after.shape[-1], dtype="float32") * _probabilities(scores)
    return ops.sum(taken, axis=-1) * ops.cast(mask, "float32")


def _probabilities(scores):
    return ops.exp(scores - ops.expand_dims(log_sum(scores), -1))


# Of numbers in [0, 1], float32 loses those below exp(-87). As long as no divisor is below SAFE, the loss is less than
# exp(-23) K² of the total, which is less than the rounding error of float32.
SAFE = math.exp(-32)
TINY = 1e-37


def log_likelihood(potentials: Potentials, tag_ids):
    """The log-probability float32 [B] of paths int32 [B, W]; 0 for a sentence without words.

    It is at most 0 up to rounding. For gradients see `log_partition`.
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
    """Log-partition float32 [B], tags' probabilities [B, W, K], and expected numbers of transitions [B, K, K]."""
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
    """Forward products [B, W, 2 K]: the previous row, scaled to a maximum of 1, times the kernel, times the word.

    The maximum of each half is its scale.
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
