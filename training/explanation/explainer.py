"""Explains one prediction: its attributions, and predictions without some of the words."""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from kmha.errors import InputError, format_names
from kmha.text.vocabulary import CONTINUATION
from training.explanation.attributions import (
    NO_WORD,
    TOKENS,
    Attributions,
    LinearTrace,
    RowTrace,
    build_attributions,
)

PROBABILITY, SCORE = "probability", "score"
MATCH, NO_MATCH = "match", "no match"


@dataclass(frozen=True)
class TextWords:
    """The words of a text, or of both texts of a pair, with one numbering."""

    texts: tuple[str, ...]
    # For each word the index of its text, its first character, and the end of its characters.
    spans: tuple[tuple[int, int, int], ...]

    @property
    def names(self) -> list[str]:
        """The words themselves."""
        return [self.texts[text][first:end] for text, first, end in self.spans]

    def of(self, text: int) -> list[int]:
        """Indices of the words of one text."""
        return [number for number, span in enumerate(self.spans) if span[0] == text]

    def gaps(self, text: int) -> list[bool]:
        """Whether there is white space before each word of a text."""
        return [self.texts[text][:first][-1:].isspace() for which, first, _ in self.spans if which == text]

    def without(self, dropped: Collection[int]) -> tuple[str, ...]:
        """The texts without some words."""
        texts = []
        for number, text in enumerate(self.texts):
            end, parts = 0, []
            for word in self.of(number):
                if word in dropped:
                    parts.append(text[end : self.spans[word][1]])
                    end = self.spans[word][2]
            texts.append("".join([*parts, text[end:]]))
        return tuple(texts)

    def truncated_to(self, words: Collection[int]) -> "TextWords":
        """Keeps the words that a model has read; each text ends at its last one.

        Otherwise words after the model's maximum length would move into its input when others are dropped.
        """
        spans = tuple(span for number, span in enumerate(self.spans) if number in words)
        ends = {text: end for text, _, end in spans}
        return TextWords(tuple(text[: ends.get(number, 0)] for number, text in enumerate(self.texts)), spans)


def white_space_bounds(text: str) -> list[tuple[int, int]]:
    """First character and end of each run of characters other than white space."""
    return [match.span() for match in re.finditer(r"\S+", text)]


def align_tokens(
    tokens: Sequence[str], pieces: Sequence[Sequence[str]], gaps: Sequence[bool]
) -> list[int] | None:
    """The index of each token's word, NO_WORD for white space; None if the words' tokens are not those of the text.

    Args:
        tokens: Of a text, without the special tokens at its ends.
        pieces: The tokens of each of its words, tokenized alone. Truncated words have no token.
        gaps: Whether there is white space before each word; it may be a token too.
    """
    found: list[int] = []
    # The last word may have no token of its own.
    ends_at_gap = bool(gaps) and gaps[-1]
    for word, (own, gap) in enumerate(zip(pieces, gaps, strict=True)):
        if len(found) == len(tokens):
            break
        if not own:
            continue
        for skipped in (0, 1) if gap else (0,):
            place = len(found) + skipped
            part = list(tokens[place : place + len(own)])
            is_whole = len(part) == len(own) or place + len(part) == len(tokens)
            if part and part == list(own[: len(part)]) and is_whole:
                found += [NO_WORD] * skipped + [word] * len(part)
                break
        else:
            if not gap:
                return None
            ends_at_gap = True
            break
    if len(found) == len(tokens) - 1 and ends_at_gap:
        # White space at which the text was truncated.
        found.append(NO_WORD)
    return found if len(found) == len(tokens) else None


class ExplainedOutput(NamedTuple):
    """The explained output of a model; the sign is -1 if the prediction is that the output is low."""

    output: int
    sign: int = 1


@dataclass(frozen=True)
class LinearPart:
    """The parts of the explained logit of a model with a linear path, as in `LinearTrace`."""

    logit: float
    bias: float
    encoder_logit: float
    is_relative: bool
    ngrams: list[
        tuple[str, float]
    ]  # of the text with their contributions, the largest ones, of either sign, first

    def report(self, most: int) -> dict[str, Any]:
        """JSON values, with at most so many n-grams."""
        numbers = {"logit": self.logit, "bias": self.bias, "encoder_logit": self.encoder_logit}
        ngrams = [list(each) for each in self.ngrams[:most]]
        return {**numbers, "relative_to_mean": self.is_relative, "ngrams": ngrams}


@dataclass(frozen=True)
class Explanation:
    """A row and its prediction."""

    explained: str  # name of the explained prediction
    value: float  # its probability, or the score
    unit: str  # "probability" or "score"
    predictions: list[tuple[str, float]]  # all labels with their values
    words: list[str]
    droppable: list[int]  # indices of the words that may be dropped; without any, there is no deletion test
    measure: Callable[[Sequence[Collection[int]]], np.ndarray]  # values without sets of words, float [sets]
    attributions: Attributions
    notes: list[str] = field(default_factory=list)  # remarks for the reader
    linear: LinearPart | None = None  # of a model with a linear path


class TextModel(Protocol):
    """A classifier or a matcher, of a run or of an exported model."""

    labels: list[str]
    decides: bool  # its only output is the probability of a match
    scores: bool  # its only output is a score that is not a probability
    pooling: str
    notes: list[str]  # remarks for the reader, for any row

    def probabilities(self, rows: Sequence[tuple[str, ...]]) -> np.ndarray:
        """float32 [R, C] of rows of one text or two."""
        ...

    def matches(self, row: tuple[str, ...]) -> bool:
        """Whether a pair matches, if `decides`."""
        ...

    def word_bounds(self, text: str) -> list[tuple[int, int]]:
        """First character and end of each word of a text."""
        ...

    def tokenize_words(self, name: str, words: Sequence[str]) -> list[list[str]]:
        """The tokens of each word alone, without special tokens, by the tokenizer of a named sequence."""
        ...

    def trace(self, row: tuple[str, ...], chosen: ExplainedOutput) -> RowTrace:
        """Tokens, attention and gradients of a row."""
        ...


def explain_text(model: TextModel, row: tuple[str, ...], label: str = "") -> Explanation:
    """Explains the prediction, or a label, for one text or two; InputError for an unknown label or without tokens."""
    probabilities = model.probabilities([row])[0]
    chosen, explained = _choose_output(model, row, probabilities, label)
    trace = model.trace(row, chosen)
    if all(len(tokens) <= 2 for tokens in trace.tokens.values()):
        raise InputError(f"TEXT: expected a text with tokens, got {' and '.join(map(repr, row))}")
    words, of_tokens = _find_words(model, row, trace)
    notes = list(model.notes)
    if words is None:
        notes.append("Words cannot be dropped: the tokens of single words differ from those of the text.")
        of_tokens = {name: [NO_WORD] * len(tokens) for name, tokens in trace.tokens.items()}
    elif words.texts != row and len(words.spans) < sum(len(model.word_bounds(text)) for text in row):
        notes.append(f"The text is truncated: the model reads its first {len(words.spans)} words.")
    known = TextWords(row, ()) if words is None else words

    def signed(values: np.ndarray) -> np.ndarray:
        return values if chosen.sign > 0 or model.scores else 1 - values

    def measure(drops: Sequence[Collection[int]]) -> np.ndarray:
        return signed(model.probabilities([known.without(drop) for drop in drops])[:, chosen.output])

    return Explanation(
        explained,
        float(signed(probabilities)[chosen.output]),
        SCORE if model.scores else PROBABILITY,
        [(name, float(value)) for name, value in zip(model.labels, probabilities, strict=True)],
        known.names,
        list(range(len(known.spans))),
        measure,
        build_attributions(trace, of_tokens, model.pooling),
        notes,
        None
        if trace.linear is None
        else _linear_part(trace.linear, trace.tokens[TOKENS], of_tokens[TOKENS], known),
    )


def _linear_part(
    linear: LinearTrace, tokens: Sequence[str], of_tokens: Sequence[int], words: TextWords
) -> LinearPart:
    """Adds the contributions of an n-gram that occurs several times."""
    found: dict[tuple[str, ...], tuple[str, float]] = {}
    for end, order in np.argwhere(linear.contributions):
        places = range(max(0, end - order), end + 1)
        key = tuple(tokens[place] for place in places)
        text, before = found.get(key) or (_join_tokens(tokens, of_tokens, words.gaps(0), places), 0.0)
        found[key] = text, before + float(linear.contributions[end, order])
    ngrams = sorted(found.values(), key=lambda each: -abs(each[1]))
    bias = linear.logit - float(linear.contributions.sum())
    return LinearPart(linear.logit, bias, linear.encoder_logit, linear.is_relative, ngrams)


def _join_tokens(
    tokens: Sequence[str], of_tokens: Sequence[int], gaps: Sequence[bool], places: Sequence[int]
) -> str:
    """The text of adjacent tokens, with a space between words only where the text has white space."""
    text = tokens[places[0]]
    for place in places[1:]:
        word, before = of_tokens[place], of_tokens[place - 1]
        has_words = word != NO_WORD and before != NO_WORD
        is_joined = word == before or not gaps[word] if has_words else tokens[place].startswith(CONTINUATION)
        text += ("" if is_joined else " ") + tokens[place].removeprefix(CONTINUATION)
    return text


def _choose_output(
    model: TextModel, row: tuple[str, ...], probabilities: np.ndarray, label: str
) -> tuple[ExplainedOutput, str]:
    if model.scores or model.decides:
        if label:
            given = f"one with a single score and {label!r}"
            raise InputError(f"--label: expected a run with labels, got {given}")
        if model.scores:
            return ExplainedOutput(0), SCORE
        return (ExplainedOutput(0), MATCH) if model.matches(row) else (ExplainedOutput(0, -1), NO_MATCH)
    if label and label not in model.labels:
        raise InputError(f"--label: expected one of {format_names(model.labels)}, got {label!r}")
    output = model.labels.index(label) if label else int(probabilities.argmax())
    return ExplainedOutput(output), model.labels[output]


def _find_words(
    model: TextModel, row: tuple[str, ...], trace: RowTrace
) -> tuple[TextWords | None, dict[str, list[int]]]:
    """The words that the model has read, and the word of each token; None if the tokens cannot be aligned."""
    for bounds in (model.word_bounds, white_space_bounds):
        words = TextWords(row, tuple((text, *span) for text, each in enumerate(row) for span in bounds(each)))
        of_tokens = _words_of_tokens(model, words, trace)
        if of_tokens is None:
            continue
        # Words with a token in any granularity.
        read = sorted({word for each in of_tokens.values() for word in each} - {NO_WORD})
        numbers = {word: place for place, word in enumerate(read)} | {NO_WORD: NO_WORD}
        renumbered = {name: [numbers[word] for word in each] for name, each in of_tokens.items()}
        return words.truncated_to(read), renumbered
    return None, {}


def _words_of_tokens(model: TextModel, words: TextWords, trace: RowTrace) -> dict[str, list[int]] | None:
    found = {}
    for name, tokens in trace.tokens.items():
        text = 1 if name.endswith("_b") else 0
        own = words.of(text)
        pieces = model.tokenize_words(name, [words.names[word] for word in own])
        inner = align_tokens(tokens[1:-1], pieces, words.gaps(text))
        if inner is None:
            return None
        found[name] = [NO_WORD, *(own[word] if word != NO_WORD else NO_WORD for word in inner), NO_WORD]
    return found


class TagModel(Protocol):
    """A tagger, of a run or of an exported model."""

    labels: list[str]
    notes: list[str]

    def tagged(self, sentences: Sequence[Sequence[str]]) -> list[tuple[list[int], np.ndarray]]:
        """Tag ids and their probabilities, float32 [W, K], of sentences of words."""
        ...

    def trace(self, words: Sequence[str], word: int, tag: int) -> tuple[RowTrace, list[int], list[int]]:
        """Trace of the window that tags a word, the word of each token, and the tokens that the tag is read from."""
        ...


def explain_tag(model: TagModel, words: Sequence[str], label: str = "", number: int = 0) -> Explanation:
    """Explains the tag of a word of a sentence, from 1; 0: the first one with a tag other than O.

    Without a label it is the predicted tag. Raises InputError if the tag or the word does not exist.
    """
    if not words:
        raise InputError("TEXT: expected a text with words, got one without")
    if number > len(words):
        raise InputError(f"--word: expected 1 to {len(words)}, the words of the text, got {number}")
    if label and label not in model.labels:
        raise InputError(f"--label: expected one of {format_names(model.labels)}, got {label!r}")
    ((tags, probabilities),) = model.tagged([words])
    entities = (place for place, tag in enumerate(tags) if model.labels[tag] != "O")
    word = number - 1 if number else next(entities, 0)
    tag = model.labels.index(label) if label else tags[word]
    trace, of_tokens, read_from = model.trace(words, word, tag)

    def measure(drops: Sequence[Collection[int]]) -> np.ndarray:
        rest = [[each for place, each in enumerate(words) if place not in drop] for drop in drops]
        places = [word - sum(each < word for each in drop) for drop in drops]
        found = model.tagged(rest)
        return np.array([each[place, tag] for (_, each), place in zip(found, places, strict=True)])

    (name,) = trace.tokens
    notes = list(model.notes)
    if len(set(of_tokens) - {NO_WORD}) < len(words):
        notes.append("The sentence is longer than a window; the page shows the window that tags the word.")
    return Explanation(
        f"{words[word]} → {model.labels[tag]}",
        float(probabilities[word, tag]),
        PROBABILITY,
        [(each, float(value)) for each, value in zip(model.labels, probabilities[word], strict=True)],
        list(words),
        sorted(set(of_tokens) - {NO_WORD, word}),
        measure,
        build_attributions(trace, {name: of_tokens}, "mean", read_from),
        notes,
    )
