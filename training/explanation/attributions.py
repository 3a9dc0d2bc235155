"""What a model looked at, put in order: sequences of tokens, who looks at whom, and what rollout and gradients say."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from training.explanation.attention_rollout import attention_rollout, pair_attention_rollout
from training.explanation.words import NO_WORD

TOKENS, ATTENTION = "tokens", "attention"


@dataclass(frozen=True)
class WindowTrace:
    """What a model gives of a window of a text that is longer than it reads at once.

    Attributes:
        places: Of its S tokens, where they are in the text, special ones included.
        share: How much the window has of the vector that is judged; all of a text sum to 1.
        attention: float32 [L, N, S, S], or with padding after it.
        gradients: Gradient × input of each token, float [S], or with padding after it.
    """

    places: Sequence[int]
    share: float
    attention: np.ndarray
    gradients: np.ndarray


@dataclass(frozen=True)
class RowTrace:
    """What a model gives of one row.

    Attributes:
        tokens: By name, such as "tokens", of pairs "tokens_a" and "tokens_b", of several granularities
            "char_tokens_a"; special ones included, padding not.
        attention: float32 [L, N, T, S] by name, such as "attention" or "attention_a_to_b"; as the names of tokens.
        gradients: Gradient × input of each token, float [T] by the name of the tokens; None where there are none.
        windows: Of a text that is read in several windows these, in place of attention and gradients; else none.
    """

    tokens: Mapping[str, Sequence[str]]
    attention: Mapping[str, np.ndarray]
    gradients: Mapping[str, np.ndarray] | None
    windows: Sequence[WindowTrace] = ()


@dataclass(frozen=True)
class TokenRow:
    """A sequence of T tokens.

    Attributes:
        name: "Text", "Text A", …
        tokens: As the vocabulary spells them.
        words: Number of the word that each stands for; NO_WORD of special tokens.
        rollout: Its share of what the answer is made of, float [T]; sums to 1 over all sequences of a granularity.
        gradient: Gradient × input, float [T]; None where there are no gradients.
    """

    name: str
    tokens: list[str]
    words: list[int]
    rollout: np.ndarray
    gradient: np.ndarray | None


@dataclass(frozen=True)
class HeadMap:
    """Who looks at whom.

    Attributes:
        name: Such as "A looks at B".
        rows: Number of the sequence that looks.
        columns: Number of the one that is looked at.
        weights: float32 [L, N, T, S].
        round: Whether its layers are rounds of cross-attention.
    """

    name: str
    rows: int
    columns: int
    weights: np.ndarray
    round: bool = False


@dataclass(frozen=True)
class Attributions:
    """All of it for one row: the sequences, and the maps between them."""

    sequences: list[TokenRow]
    maps: list[HeadMap]

    def word_scores(self, count: int) -> dict[str, np.ndarray]:
        """What rollout and gradients say of each word, float [W] by method: the sum over its tokens.

        Of several granularities, which all read the same words, the sum too.
        """
        found = {"attention": np.zeros(count)}
        if all(row.gradient is not None for row in self.sequences):
            found["gradient"] = np.zeros(count)
        for row in self.sequences:
            for name, values in (("attention", row.rollout), ("gradient", row.gradient)):
                if name not in found or values is None:
                    continue
                for word, value in zip(row.words, values, strict=True):
                    if word != NO_WORD:
                        found[name][word] += value
        return found


def build_attributions(
    trace: RowTrace, words: Mapping[str, Sequence[int]], pooling: str, read_from: Sequence[int] = ()
) -> Attributions:
    """Puts in order what a model gave.

    Args:
        trace: What it gave.
        words: By the name of the tokens, the word that each token stands for.
        pooling: How tokens become the vector that is judged: "cls", or anything else for their mean.
        read_from: Of a tagger, the tokens from which the word is judged; else none.
    """
    if trace.windows:
        return _seen_in_windows(trace, words, pooling)
    sequences: list[TokenRow] = []
    maps: list[HeadMap] = []
    for prefix in dict.fromkeys(name.partition(TOKENS)[0] for name in trace.tokens):
        _add(sequences, maps, trace, words, prefix, pooling, read_from)
    return Attributions(sequences, maps)


def _seen_in_windows(trace: RowTrace, words: Mapping[str, Sequence[int]], pooling: str) -> Attributions:
    """Every window as a sequence of its own; a word that two of them read has what both say of it."""
    sequences, maps, count = [], [], len(trace.windows)
    for index, window in enumerate(trace.windows):
        size, number = len(window.places), index + 1
        tokens = [trace.tokens[TOKENS][place] for place in window.places]
        attention = window.attention[:, :, :size, :size]
        rollout = window.share * (_start([tokens], pooling, False, ()) @ attention_rollout(attention))
        its_words = [words[TOKENS][place] for place in window.places]
        gradients = np.asarray(window.gradients[:size], np.float64)
        sequences.append(TokenRow(f"Window {number} of {count}", tokens, its_words, rollout, gradients))
        maps.append(HeadMap(f"Within window {number}", index, index, attention))
    return Attributions(sequences, maps)


def _add(
    sequences, maps, trace: RowTrace, words, prefix: str, pooling: str, read_from: Sequence[int]
) -> None:
    """Adds the sequences and maps of one granularity."""
    names = [name for name in trace.tokens if name.partition(TOKENS)[0] == prefix]
    first, whose = len(sequences), prefix.rstrip("_")
    kept = [list(trace.tokens[name]) for name in names]
    gradients = None if trace.gradients is None else [trace.gradients[name] for name in names]
    its_words = [list(words[name]) for name in names]
    of = {name[len(prefix) :]: value for name, value in trace.attention.items() if name.startswith(prefix)}
    if len(names) == 1:
        mixed = attention_rollout(of[ATTENTION])
        found = [("Within the text", 0, 0, of[ATTENTION])]
    elif ATTENTION in of:
        # Both texts are one sequence, in which the [CLS] of B is missing.
        cut = len(kept[0])
        kept[1], its_words[1] = kept[1][1:], its_words[1][1:]
        mixed = attention_rollout(of[ATTENTION])
        ends = (slice(0, cut), slice(cut, None))
        found = [
            (_title(rows, columns), rows, columns, of[ATTENTION][:, :, ends[rows], ends[columns]])
            for rows, columns in ((0, 1), (1, 0), (0, 0), (1, 1))
        ]
    else:
        across = [of.get(f"{ATTENTION}_{way}") for way in ("a_to_b", "b_to_a")]
        alone = [of[f"{ATTENTION}_{side}"] for side in "ab"]
        mixed = pair_attention_rollout(*alone, *across)
        found = [
            (_title(i, 1 - i), i, 1 - i, weights) for i, weights in enumerate(across) if weights is not None
        ]
        found += [(_title(i, i), i, i, weights) for i, weights in enumerate(alone)]
    shares = _start(kept, pooling, len(names) == 2 and ATTENTION not in of, read_from) @ mixed
    for index, tokens in enumerate(kept):
        before = sum(map(len, kept[:index]))
        name = "Text" if len(names) == 1 else f"Text {'AB'[index]}"
        sequences.append(
            TokenRow(
                f"{name} ({whose})" if whose else name,
                tokens,
                its_words[index],
                shares[before : before + len(tokens)],
                None if gradients is None else np.asarray(gradients[index], np.float64),
            )
        )
    maps += [
        HeadMap(
            f"{title} ({whose})" if whose else title,
            first + rows,
            first + columns,
            weights,
            rows != columns and ATTENTION not in of,
        )
        for title, rows, columns, weights in found
    ]


def _title(rows: int, columns: int) -> str:
    return f"Within {'AB'[rows]}" if rows == columns else f"{'AB'[rows]} looks at {'AB'[columns]}"


def _start(kept: list[list[str]], pooling: str, apart: bool, read_from: Sequence[int]) -> np.ndarray:
    """How much of the judged vector each position is, float64 [P]; texts that are read apart count alike."""
    lengths = list(map(len, kept)) if apart else [sum(map(len, kept))]
    shares = []
    for length in lengths:
        share = np.zeros(length)
        share[list(read_from) or (slice(0, 1) if pooling == "cls" else slice(None))] = 1
        shares.append(share / share.sum() / len(lengths))
    return np.concatenate(shares)
