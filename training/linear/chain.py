"""Fits the linear path of a tagger, a conditional random field on hashed features of words, and weighs both paths."""

import dataclasses
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import scipy.sparse
import tensorflow as tf
from keras import ops
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits

from kmha.features import CHARACTER_IDS, TOKEN_IDS, WORD_STARTS
from kmha.inference.batching import graph_function
from kmha.layers.embedding import FINGERPRINT_MODULUS
from kmha.layers.linear_words import HASHES, word_keys
from training.data.sentence_batches import SentenceSource
from training.linear.ngrams import MIN_TEXTS, table_size
from training.metrics.classification import log_loss
from training.runtime.cpu_sharding import intra_op_cores

# The most frequent features are fitted first, and those with the largest weights again.
MAX_FIRST_WEIGHTS, MAX_WEIGHTS = 3_000_000, 1_000_000
FIRST_STEPS, LAST_STEPS = 30, 15
# Of squared weights, chosen on validation rows; the features are chosen with the second.
PENALTIES = (0.3, 1.0, 3.0)
# Of a word: the second derivative of its loss, on average.
CURVATURE = 0.1
# Random sentences are enough: at most so many words, and words times tags.
MAX_WORDS, MAX_SCORES = 250_000, 20_000_000
BATCH_TOKENS, BATCH_ROWS = 8192, 512


class Chains:
    """Sentences whose words are concatenated, [N]: the probabilities of all tag sequences.

    Args:
        lengths: Words of each sentence, int [R].
    """

    def __init__(self, lengths: np.ndarray):
        begins = np.cumsum(lengths) - lengths
        order = np.argsort(-lengths, kind="stable")
        order = order[lengths[order] > 0]
        self.firsts, self.lasts = begins[order], (begins + lengths - 1)[order]
        # The words at each position, those of the longest sentences first.
        counts = [int((lengths > place).sum()) for place in range(int(lengths.max(initial=0)))]
        self.positions = [self.firsts[:count] + place for place, count in enumerate(counts)]
        self.later = np.concatenate([*self.positions[1:], np.zeros(0, np.int64)])

    def expected(self, emissions: np.ndarray, crf: "Crf") -> tuple[float, np.ndarray, np.ndarray]:
        """The sum of the log-partitions, the probabilities of tags [N, K], and expected transitions [K, K]."""
        highest = emissions.max(axis=1, keepdims=True)
        scores, kernel, end = np.exp(emissions - highest), np.exp(crf.transitions), np.exp(crf.end)
        forward, sums = np.empty_like(scores), np.empty_like(highest)
        before = np.exp(crf.start)[None]
        for place, words in enumerate(self.positions):
            before = (before[: len(words)] @ kernel if place else before) * scores[words]
            sums[words] = before.sum(axis=1, keepdims=True)
            before = before / sums[words]
            forward[words] = before
        last = forward[self.lasts] @ end
        logs = np.log(sums).sum(dtype=np.float64) + np.log(last).sum(dtype=np.float64)
        finish = end / last[:, None]
        probabilities, pairs = np.empty_like(scores), np.zeros_like(kernel)
        after = scores[:0]
        for words in reversed(self.positions):
            backward = np.concatenate([after @ kernel.T, finish[len(after) : len(words)]])
            pairs += forward[words[: len(after)]].T @ after
            probabilities[words] = forward[words] * backward
            after = scores[words] * backward / sums[words]
        return float(logs + highest.sum(dtype=np.float64)), probabilities, kernel * pairs

    def loss(self, emissions: np.ndarray, crf: "Crf", tags: np.ndarray) -> float:
        """The negative log-likelihood per word of tag ids, int [N]; smoothed as in `smoothed_loss`."""
        total, _, _ = self.expected(emissions, crf)
        before, here = tags[self.later - 1], tags[self.later]
        total -= crf.transitions[before, here].sum() + crf.start[tags[self.firsts]].sum()
        total -= crf.end[tags[self.lasts]].sum()
        of_tags = emissions[np.arange(len(tags)), tags]
        share = 2 / (len(tags) + 2)
        return float((total - of_tags.sum() + share * (of_tags - emissions.mean(axis=1)).sum()) / len(tags))


@dataclasses.dataclass(frozen=True)
class Crf:
    """The weights of `kmha.layers.crf.CRF`: transitions float [K, K], start and end float [K]."""

    transitions: np.ndarray
    start: np.ndarray
    end: np.ndarray

    def plus(self, other: "Crf", own: float, others: float) -> "Crf":
        """The weighted sum of both."""
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return Crf(*(own * a + others * b for a, b in pairs))


@dataclasses.dataclass(frozen=True)
class LinearChain:
    """A fitted conditional random field on features of words.

    Attributes:
        slots: Size of the hash table.
        keys: Slot and fingerprint of each feature, int64 [F, 2].
        kernel: float32 [F, K].
        bias: float32 [K].
        crf: Its other weights.
        scores: Of the words of the validation rows, float32 [N, K].
        description: The model in one line.
    """

    slots: int
    keys: np.ndarray
    kernel: np.ndarray
    bias: np.ndarray
    crf: Crf
    scores: np.ndarray
    description: str

    def assign(self, model: Any, factor: float = 0.0) -> None:
        """Sets the weights of a tagger's linear path, with the scores multiplied by a factor.

        It is 0 before `join`: without the transitions, the sum of both scores is no better than those of the encoder.
        """
        model.linear.assign(self.keys, self.kernel * factor, self.bias * factor)

    def refit(self, parts: Sequence[SentenceSource], seed: int) -> None:
        """None: the chain is not fitted again with the validation rows."""

    def join(
        self, model: Any, scores: np.ndarray, validation: SentenceSource
    ) -> tuple[tuple[float, float], np.ndarray]:
        """Adds the path to a trained tagger, by factors of both that are fitted on validation rows.

        Args:
            model: Its tagger, with a linear layer whose weights are zeros.
            scores: The scores of the tagger for the words of the validation rows, float32 [N, K].
            validation: The validation rows.

        Returns:
            The factors of the path and of the encoder, and the new scores, float32 [N, K].
        """
        own = Crf(
            *(ops.convert_to_numpy(each) for each in (model.crf.transitions, model.crf.start, model.crf.end))
        )
        factors, of_crf = self.weigh(scores, own, validation)
        self._assign_tagger(model, *factors, self.crf.plus(own, *of_crf))
        return factors, factors[0] * self.scores + factors[1] * scores

    def replace(self, model: Any) -> None:
        """Sets the weights of a tagger so that only the path counts."""
        self._assign_tagger(model, 1.0, 0.0, self.crf)

    def _assign_tagger(self, model: Any, linear: float, encoder: float, crf: Crf) -> None:
        self.assign(model, linear)
        for weights in (model.head.kernel, model.head.bias):
            weights.assign(weights * encoder)
        model.crf.transitions.assign(crf.transitions)
        model.crf.start.assign(crf.start)
        model.crf.end.assign(crf.end)

    def weigh(self, encoder: np.ndarray, crf: Crf, source: SentenceSource) -> tuple[tuple[float, float], ...]:
        """The factors, at least 0, with the lowest validation loss.

        Args:
            encoder: Scores of the words of the validation rows, float32 [N, K].
            crf: The other weights of the tagger.
            source: The validation rows.

        Returns:
            Of the scores of the path and of the encoder, then of the other weights of both.
        """
        chains = Chains(source.word_counts)

        def loss(values: np.ndarray) -> float:
            joined = (values[0] * self.scores + values[1] * encoder).astype(np.float64)
            return chains.loss(joined, self.crf.plus(crf, *values[2:]), source.targets)

        linear, head, *of_crf = minimize(
            loss, np.full(4, 0.5), method="L-BFGS-B", bounds=[(0.0, 10.0)] * 4
        ).x.tolist()
        return (linear, head), tuple(of_crf)


def fit_linear_chain(
    train: SentenceSource, validation: SentenceSource, tags: int, with_transitions: bool, seed: int
) -> LinearChain | None:
    """Fits a conditional random field on the features of words that occur twice; None without such features.

    Args:
        train: The training rows.
        validation: The validation rows.
        tags: K.
        with_transitions: Whether transitions between tags have weights.
        seed: Random seed of the sample of the training rows.
    """
    train = _sampled(train, tags, seed)
    hashed, checked = word_codes(train), word_codes(validation)
    found, counts = np.unique(hashed[hashed >= 0], return_counts=True)
    found, counts = found[counts >= MIN_TEXTS], counts[counts >= MIN_TEXTS]
    known = _most_important(found, counts, HASHES, MAX_FIRST_WEIGHTS // tags)
    if not len(known):
        return None
    zeros = np.zeros((len(known) + 1 + tags + 2, tags))
    # Threads of BLAS would take longer than the many small products.
    with threadpool_limits(1, "blas"):
        weights = _fit(_features(hashed, known), train, zeros, PENALTIES[1], FIRST_STEPS, with_transitions)
    # A small hash table for few features.
    most = max(1, MAX_WEIGHTS // tags)
    slots = table_size(4 * min(len(known), most))
    selected = _most_important(known, np.abs(weights[: len(known)]).max(axis=1), slots, most)
    weights = weights[np.append(np.searchsorted(known, selected), np.arange(len(known), len(weights)))]
    features, checked, chains = (
        _features(hashed, selected),
        _features(checked, selected),
        Chains(validation.word_counts),
    )

    def fitted(penalty: float) -> tuple[float, float, np.ndarray, Crf, np.ndarray]:
        found = _fit(features, train, weights, penalty, LAST_STEPS, with_transitions)
        kernel, crf = _split(found, features.shape[1])
        scores = checked @ kernel
        return chains.loss(scores.astype(np.float64), crf, validation.targets), penalty, kernel, crf, scores

    with threadpool_limits(1, "blas"), ThreadPoolExecutor(intra_op_cores()) as pool:
        _, penalty, kernel, crf, scores = min(pool.map(fitted, PENALTIES), key=lambda each: each[0])
    # In the log the loss is that of single words, as in the epochs of the encoder.
    probabilities = chains.expected(scores, crf)[1]
    accuracy = (probabilities.argmax(axis=1) == validation.targets).mean()
    loss = log_loss(probabilities[np.arange(len(scores)), validation.targets])
    keys = np.stack([selected // FINGERPRINT_MODULUS % slots, selected % FINGERPRINT_MODULUS], axis=1)
    description = (
        f"{len(selected):,} features of words, penalty {penalty:g}, validation loss {loss:.3f},"
        f" token accuracy {accuracy:.3f}"
    )
    return LinearChain(slots, keys, kernel[:-1], kernel[-1], crf, scores, description)


def _sampled(source: SentenceSource, tags: int, seed: int) -> SentenceSource:
    """The sentences to fit on: all, or as many random ones as time allows, at least one."""
    most = min(MAX_WORDS, MAX_SCORES // tags)
    counts = source.word_counts
    if counts.sum() <= most:
        return source
    order = np.random.default_rng([seed, 19]).permutation(len(counts))
    number = int(np.searchsorted(np.cumsum(counts[order]), most, side="right"))
    chosen = np.sort(order[: max(1, number)])
    is_chosen = np.zeros(len(counts), bool)
    is_chosen[chosen] = True
    return dataclasses.replace(
        source,
        rows=source.rows[chosen],
        targets=source.targets[np.repeat(is_chosen, counts)],
        weights=source.weights[chosen],
    )


def word_codes(source: SentenceSource) -> np.ndarray:
    """Hash and fingerprint of each feature of each word as one number, int64 [N, F]; -1 for no feature."""
    names = (TOKEN_IDS, WORD_STARTS, *([] if source.tokens.spellings is None else [CHARACTER_IDS]))
    signature = (tf.TensorSpec([None] * (3 if name == CHARACTER_IDS else 2), tf.int32) for name in names)
    keys = graph_function(word_keys, *signature)
    result = None
    for plan in source.plans(source.buckets([]), BATCH_TOKENS, BATCH_ROWS, rng=None):
        features = source.batch(plan)["features"]
        hashes, fingerprints = (each.numpy() for each in keys(*(features[name] for name in names)))
        codes = hashes.astype(np.int64) * FINGERPRINT_MODULUS + fingerprints
        codes[fingerprints < 0] = -1
        if result is None:
            result = np.full((int(source.counts.sum()), codes.shape[2]), -1)
        for window, found in zip(plan.rows, codes, strict=False):
            begin, count = source.begins[window], source.counts[window]
            result[begin : begin + count] = found[:count]
    assert result is not None  # there are rows
    return result


def _most_important(codes: np.ndarray, importance: np.ndarray, slots: int, most: int) -> np.ndarray:
    """The codes that a hash table can have, at most `most`, ascending; of those with the same slot, one remains."""
    order = np.argsort(-importance, kind="stable")
    _, firsts = np.unique(codes[order] // FINGERPRINT_MODULUS % slots, return_index=True)
    return np.sort(codes[order[np.sort(firsts)[:most]]])


def _features(codes: np.ndarray, known: np.ndarray) -> scipy.sparse.csr_matrix:
    """How often each word has each known feature, sparse float32 [N, F + 1]; the last column is 1."""
    columns = np.minimum(np.searchsorted(known, codes), len(known) - 1)
    rows, places = np.nonzero(known[columns] == codes)
    counts = np.ones(len(rows) + len(codes), np.float32)
    columns = np.append(columns[rows, places], np.full(len(codes), len(known)))
    rows = np.append(rows, np.arange(len(codes)))
    # Conversion adds up equal places.
    return scipy.sparse.coo_matrix((counts, (rows, columns)), (len(codes), len(known) + 1)).tocsr()


def _split(weights: np.ndarray, features: int) -> tuple[np.ndarray, Crf]:
    """The weights of features, float32, and of transitions from all weights [F + 1 + K + 2, K]."""
    return weights[:features].astype(np.float32), Crf(
        weights[features:-2].astype(np.float32), *weights[-2:].astype(np.float32)
    )


def _fit(
    features: scipy.sparse.csr_matrix,
    source: SentenceSource,
    first: np.ndarray,
    penalty: float,
    steps: int,
    with_transitions: bool,
) -> np.ndarray:
    """The weights of a conditional random field, float64 [F + 1 + K + 2, K], by L-BFGS with an L2 penalty.

    Args:
        features: Of the words, sparse float32 [N, F + 1].
        source: Their tags and the lengths of the sentences.
        first: The weights to begin with. Rows are features, transitions from a tag, start and end.
        penalty: Factor of the squared weights.
        steps: Number of steps.
        with_transitions: Whether the last K + 2 rows are trained.
    """
    size, count = features.shape[1], first.shape[1]
    tags, chains, transposed = source.targets, Chains(source.word_counts), features.T.tocsr()
    words = np.arange(len(tags))
    observed = np.zeros((count + 2, count), np.float32)
    np.add.at(observed, (tags[chains.later - 1], tags[chains.later]), 1)
    np.add.at(observed[-2], tags[chains.firsts], 1)
    np.add.at(observed[-1], tags[chains.lasts], 1)
    # Scaled by the root of the second derivative, rare features would have as large steps as frequent ones.
    # That converges fast, but to worse models of small data; without a scale the steps are too small.
    counts = np.append(np.asarray(features.power(2).sum(axis=0)), np.full(count + 2, len(tags) / count))
    scale = (CURVATURE * counts + 2 * penalty)[:, None] ** -0.25
    if not with_transitions:
        scale[size:] = 0.0

    def loss(values: np.ndarray) -> tuple[float, np.ndarray]:
        weights = values.reshape(first.shape) * scale
        kernel, crf = _split(weights, size)
        scores = features @ kernel
        total, errors, pairs = chains.expected(scores, crf)
        total -= scores[words, tags].sum(dtype=np.float64) + (observed * weights[size:]).sum()
        errors[words, tags] -= 1
        ends = errors[chains.firsts].sum(axis=0), errors[chains.lasts].sum(axis=0)
        gradient = np.concatenate([transposed @ errors, pairs - observed[:-2], ends], dtype=np.float64)
        gradient = (gradient + 2 * penalty * weights) * scale
        return total + penalty * (weights**2).sum(), gradient.ravel()

    start = (first / np.where(scale > 0, scale, 1.0)).ravel()
    options = {"maxiter": steps, "maxcor": 6}
    return minimize(loss, start, jac=True, method="L-BFGS-B", options=options).x.reshape(first.shape) * scale
