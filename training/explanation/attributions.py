"""Attributions of one row: token sequences with rollout and gradient × input, and attention maps between them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kmha.text.vocabulary import CONTINUATION

TOKENS, ATTENTION = "tokens", "attention"
NO_WORD = -1


def attention_rollout(weights: np.ndarray) -> np.ndarray:
    """Rollout of self-attention: the product of all layers, each half the mean of its heads and half the residual.

    It is how much of each input token all layers together mix into each position: float64 [T, T], of which each row
    sums to 1, from weights float [L, N, T, T]. Source: Abnar and Zuidema 2020, arXiv:2005.00928.
    """
    mixed = np.eye(weights.shape[-1])
    for layer in weights:
        mixed = _with_residual(mean_of_heads(layer)) @ mixed
    return mixed


def pair_attention_rollout(
    weights_a: np.ndarray,
    weights_b: np.ndarray,
    a_to_b: np.ndarray | None = None,
    b_to_a: np.ndarray | None = None,
) -> np.ndarray:
    """Rollout of two texts that are encoded alone, then connected by rounds of cross-attention.

    The weights are float [L, N, T, T] of A, [L, N, S, S] of B, and [R, N, T, S] and [R, N, S, T] of rounds, layers in
    which each text attends to the other only. The result is float64 [T + S, T + S], A first; each row sums to 1.
    """
    a, b = attention_rollout(weights_a), attention_rollout(weights_b)
    length = len(a)
    mixed = np.zeros((length + len(b),) * 2)
    mixed[:length, :length], mixed[length:, length:] = a, b
    rounds: Sequence = () if a_to_b is None or b_to_a is None else list(zip(a_to_b, b_to_a, strict=True))
    for to_b, to_a in rounds:
        layer = np.zeros_like(mixed)
        layer[:length, length:] = mean_of_heads(to_b)
        layer[length:, :length] = mean_of_heads(to_a)
        mixed = _with_residual(layer) @ mixed
    return mixed


def count_heads(weights: np.ndarray) -> int:
    """The number of heads in a layer, float [N, T, S], without the zeros that replace pruned heads at its end."""
    return int(np.flatnonzero(weights.any(axis=(1, 2))).max(initial=0)) + 1


def mean_of_heads(weights: np.ndarray) -> np.ndarray:
    """The mean of a layer's heads, float [N, T, S], as float64 [T, S]."""
    return weights[: count_heads(weights)].astype(np.float64).mean(axis=0)


def _with_residual(layer: np.ndarray) -> np.ndarray:
    """Half the attention [P, P], half the position itself; fully masked rows become the position alone."""
    mixed = layer + np.eye(len(layer))
    return mixed / mixed.sum(axis=1, keepdims=True)


@dataclass(frozen=True)
class WindowTrace:
    """The trace of one window of a text that is longer than the model reads at once."""

    places: Sequence[int]  # index of each of its S tokens in the text, special tokens included
    share: float  # weight of the window in the pooled vector; the windows of a text sum to 1
    attention: np.ndarray  # float32 [L, N, S, S], or with padding after it
    gradients: np.ndarray  # gradient × input of each token, float [S], or with padding after it


@dataclass(frozen=True)
class LinearTrace:
    """The parts of the explained logit of a model with a linear path, see `linear_trace`."""

    # Of the n-grams that end at each token, those of n tokens at n - 1: float64 [T, orders].
    contributions: np.ndarray
    logit: float  # of the linear path: the sum of the contributions, and the bias
    encoder_logit: float
    is_relative: bool  # to the mean of all labels

    def token_shares(self) -> np.ndarray:
        """The contributions, each split equally over the tokens of its n-gram, float64 [T]."""
        shares = np.zeros(len(self.contributions))
        for end, order in np.argwhere(self.contributions):
            shares[max(0, end - order) : end + 1] += self.contributions[end, order] / (min(order, end) + 1)
        return shares


def linear_trace(
    contributions: np.ndarray, linear: np.ndarray, encoder: np.ndarray, output: int, multi_label: bool
) -> LinearTrace:
    """The parts of the logit of one label, from float [T, orders, C] and both logits [C].

    With one label per text, the parts are relative to their mean over all labels: softmax ignores what all logits have
    in common.
    """
    parts = (np.asarray(each, np.float64) for each in (contributions, linear, encoder))
    ngrams, *logits = (each[..., output] - (0.0 if multi_label else each.mean(axis=-1)) for each in parts)
    return LinearTrace(ngrams, *map(float, logits), is_relative=not multi_label)


@dataclass(frozen=True)
class RowTrace:
    """Tokens, attention and gradients of one row."""

    # By name: "tokens", of pairs "tokens_a" and "tokens_b", of several granularities "char_tokens_a", …; with special
    # tokens, without padding.
    tokens: Mapping[str, Sequence[str]]
    # float32 [L, N, T, S] by name, such as "attention" or "attention_a_to_b"; prefixes as in `tokens`.
    attention: Mapping[str, np.ndarray]
    # Gradient × input of each token, float [T], by the name of the tokens; None if not available.
    gradients: Mapping[str, np.ndarray] | None
    windows: Sequence[WindowTrace] = ()  # of a text of several windows, in place of attention and gradients
    linear: LinearTrace | None = None  # of a model with a linear path


@dataclass(frozen=True)
class TokenRow:
    """A sequence of T tokens."""

    name: str  # "Text", "Text A", …
    tokens: list[str]
    words: list[int]  # index of each token's word; NO_WORD for special tokens
    # Share in the prediction, float [T]; sums to 1 over the sequences of a granularity; None without attention.
    rollout: np.ndarray | None
    gradient: np.ndarray | None  # gradient × input, float [T]; None without gradients
    ngrams: np.ndarray | None = None  # contributions of n-grams, float [T]; None without a linear path


@dataclass(frozen=True)
class HeadMap:
    """Attention weights between two sequences."""

    name: str  # such as "A attends to B"
    rows: int  # index of the sequence that attends
    columns: int  # index of the sequence that is attended to
    weights: np.ndarray  # float32 [L, N, T, S]
    round: bool = False  # whether its layers are rounds of cross-attention


@dataclass(frozen=True)
class Attributions:
    """The sequences of one row, and the attention maps between them."""

    sequences: list[TokenRow]
    maps: list[HeadMap]

    def word_scores(self, count: int) -> dict[str, np.ndarray]:
        """Scores of each word by method, float [W]: the sums over its tokens of all granularities."""
        scores = {}
        for name, key in (("attention", "rollout"), ("gradient", "gradient"), ("ngrams", "ngrams")):
            values = [getattr(row, key) for row in self.sequences]
            if any(each is None for each in values):
                continue
            scores[name] = np.zeros(count)
            for row, each in zip(self.sequences, values, strict=True):
                for word, value in zip(row.words, each, strict=True):
                    if word != NO_WORD:
                        scores[name][word] += value
        return scores


def join_word_pieces(attributions: Attributions) -> Attributions:
    """The attributions of words in place of their adjacent tokens; special tokens stay.

    Scores of tokens add up. A word receives the sum of the attention to its tokens, and its own attention is the mean
    of that of its tokens, so rows of weights keep their sum. Source: Clark et al. 2019, arXiv:1906.04341, section 4.
    """
    starts = [
        [
            place
            for place, word in enumerate(row.words)
            if not place or word == NO_WORD or word != row.words[place - 1]
        ]
        for row in attributions.sequences
    ]
    maps = []
    for each in attributions.maps:
        rows, columns = starts[each.rows], starts[each.columns]
        sizes = np.diff(rows, append=each.weights.shape[2])
        received = np.add.reduceat(each.weights, columns, axis=3)
        weights = np.add.reduceat(received, rows, axis=2) / sizes[:, None].astype(np.float32)
        maps.append(replace(each, weights=weights))
    return Attributions([_join_row(*each) for each in zip(attributions.sequences, starts, strict=True)], maps)


def _join_row(row: TokenRow, starts: list[int]) -> TokenRow:
    """A sequence of words, from the index of the first token of each."""
    pieces = (row.tokens[first:end] for first, end in zip(starts, [*starts[1:], None], strict=True))
    tokens = [first + "".join(each.removeprefix(CONTINUATION) for each in rest) for first, *rest in pieces]
    words = [row.words[first] for first in starts]
    scores = (row.rollout, row.gradient, row.ngrams)
    sums = (None if each is None else np.add.reduceat(each, starts) for each in scores)
    return TokenRow(row.name, tokens, words, *sums)


def build_attributions(
    trace: RowTrace, words: Mapping[str, Sequence[int]], pooling: str, read_from: Sequence[int] = ()
) -> Attributions:
    """Computes the attributions of a row from its trace and the index of each token's word, by the name of the tokens.

    Token vectors are pooled by "cls", or anything else for their mean; `read_from` are the tokens that a tag is
    predicted from.
    """
    if trace.windows:
        return _window_attributions(trace, words, pooling)
    sequences: list[TokenRow] = []
    maps: list[HeadMap] = []
    for prefix in dict.fromkeys(name.partition(TOKENS)[0] for name in trace.tokens):
        _add_granularity(sequences, maps, trace, words, prefix, pooling, read_from)
    return Attributions(sequences, maps)


def _window_attributions(trace: RowTrace, words: Mapping[str, Sequence[int]], pooling: str) -> Attributions:
    """One sequence for each window; the scores of a word in two windows add up."""
    sequences, maps, count = [], [], len(trace.windows)
    ngrams = None
    if trace.linear is not None:
        # Split over the windows that have the token.
        windows = np.bincount(np.concatenate([window.places for window in trace.windows]))
        ngrams = trace.linear.token_shares() / windows
    for index, window in enumerate(trace.windows):
        size, number = len(window.places), index + 1
        tokens = [trace.tokens[TOKENS][place] for place in window.places]
        attention = window.attention[:, :, :size, :size]
        shares = _pooling_weights([tokens], pooling, False, ())
        rollout = window.share * (shares @ attention_rollout(attention))
        its_words = [words[TOKENS][place] for place in window.places]
        gradients = np.asarray(window.gradients[:size], np.float64)
        own = None if ngrams is None else ngrams[list(window.places)]
        sequences.append(TokenRow(f"Window {number} of {count}", tokens, its_words, rollout, gradients, own))
        maps.append(HeadMap(f"Within window {number}", index, index, attention))
    return Attributions(sequences, maps)


def _add_granularity(
    sequences: list[TokenRow],
    maps: list[HeadMap],
    trace: RowTrace,
    words: Mapping[str, Sequence[int]],
    prefix: str,
    pooling: str,
    read_from: Sequence[int],
) -> None:
    """Appends the sequences and maps of one granularity."""
    names = [name for name in trace.tokens if name.partition(TOKENS)[0] == prefix]
    first, suffix = len(sequences), f" ({prefix.rstrip('_')})" if prefix else ""
    tokens = [list(trace.tokens[name]) for name in names]
    gradients = None if trace.gradients is None else [trace.gradients[name] for name in names]
    its_words = [list(words[name]) for name in names]
    of = {name[len(prefix) :]: value for name, value in trace.attention.items() if name.startswith(prefix)}
    is_one_sequence = ATTENTION in of
    if not of:
        # No encoder blocks.
        mixed, found = None, []
    elif len(names) == 1:
        mixed = attention_rollout(of[ATTENTION])
        found = [("Within the text", 0, 0, of[ATTENTION])]
    elif is_one_sequence:
        # Both texts in one sequence, without the [CLS] of B.
        end = len(tokens[0])
        tokens[1], its_words[1] = tokens[1][1:], its_words[1][1:]
        mixed = attention_rollout(of[ATTENTION])
        sides = (slice(0, end), slice(end, None))
        found = [
            (_title(rows, columns), rows, columns, of[ATTENTION][:, :, sides[rows], sides[columns]])
            for rows, columns in ((0, 1), (1, 0), (0, 0), (1, 1))
        ]
    else:
        across = [of.get(f"{ATTENTION}_{way}") for way in ("a_to_b", "b_to_a")]
        within = [of[f"{ATTENTION}_{side}"] for side in "ab"]
        mixed = pair_attention_rollout(*within, *across)
        found = [(_title(i, 1 - i), i, 1 - i, each) for i, each in enumerate(across) if each is not None]
        found += [(_title(i, i), i, i, each) for i, each in enumerate(within)]
    is_apart = len(names) == 2 and not is_one_sequence
    shares = None if mixed is None else _pooling_weights(tokens, pooling, is_apart, read_from) @ mixed
    ngrams = None if trace.linear is None else trace.linear.token_shares()
    before = 0
    for index, each in enumerate(tokens):
        name = "Text" if len(names) == 1 else f"Text {'AB'[index]}"
        gradient = None if gradients is None else np.asarray(gradients[index], np.float64)
        rollout = None if shares is None else shares[before : before + len(each)]
        sequences.append(TokenRow(f"{name}{suffix}", each, its_words[index], rollout, gradient, ngrams))
        before += len(each)
    maps += [
        HeadMap(f"{title}{suffix}", first + rows, first + columns, weights, is_apart and rows != columns)
        for title, rows, columns, weights in found
    ]


def _title(rows: int, columns: int) -> str:
    return f"Within {'AB'[rows]}" if rows == columns else f"{'AB'[rows]} attends to {'AB'[columns]}"


def _pooling_weights(
    tokens: list[list[str]], pooling: str, is_apart: bool, read_from: Sequence[int]
) -> np.ndarray:
    """Weight of each position in the pooled vector, float64 [P]; texts that are encoded apart have equal weights."""
    lengths = list(map(len, tokens)) if is_apart else [sum(map(len, tokens))]
    shares = []
    for length in lengths:
        share = np.zeros(length)
        share[list(read_from) or (slice(0, 1) if pooling == "cls" else slice(None))] = 1
        shares.append(share / share.sum() / len(lengths))
    return np.concatenate(shares)
