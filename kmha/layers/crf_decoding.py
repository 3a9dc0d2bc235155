"""CRF decoding: the best path and the probabilities of tags, exact for any potentials.

Computed in log space, one word per step of a loop that TFLite and ONNX support, with few ops per step. A queue replaces
a TensorArray: each step takes its word from one end and appends the result at the other. An additional tag replaces a
padding mask. Scores are relative to the best of their word, so that rounding errors do not grow with the length.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from keras import ops

from kmha.layers.crf import FORBIDDEN, Potentials, fold_boundaries

# Score of a tag at padding, and of padding at a word: lower than that of any path with forbidden transitions.
IMPOSSIBLE = 100 * FORBIDDEN


class Decoded(NamedTuple):
    """The best path of each sentence with probabilities.

    Attributes:
        tag_ids: int32 [B, W], from `viterbi`.
        marginals: float32 [B, W, K], from `marginals`.
        path_probabilities: float32 [B, W], from `path_probabilities` for these tags.
    """

    tag_ids: Any
    marginals: Any
    path_probabilities: Any


class Chain(NamedTuple):
    """One recursion over the words of a sentence.

    Attributes:
        scores: float32 [W, B, K + 1], added at each word; the last tag is padding.
        kernel: float32 [K + 1, K + 1], from the tag of the current word (row) to that of the word in the previous step.
        reduce: Reduction over the last axis: `highest` or `log_sum`.
        backwards: Whether the recursion goes from the last word to the first.
    """

    scores: Any
    kernel: Any
    reduce: Callable
    backwards: bool


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
    """The probability of each tag of a path: the marginal of the first tag, then of each tag given the previous one.

    The product over a sentence is the probability of the path. The marginal of the tag at a span's first word, times
    these factors of its other words, is the probability that the whole span has these tags.

    Args:
        potentials: Potentials of B sentences.
        tag_ids: int32 [B, W]; any value at padding.

    Returns:
        float32 [B, W]: P(tag 0 | sentence), then P(tag t | tag t - 1, sentence); zeros at padding.
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
    """Runs several recursions in one loop.

    Args:
        chains: Recursions of the same sizes.

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
