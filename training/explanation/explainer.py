"""One row asked of a model: the answer explained, what the model looked at, what it says without some words."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from kmha.errors import InputError
from training.explanation.attributions import Attributions, RowTrace, build_attributions
from training.explanation.words import NO_WORD, TextWords, align_tokens, white_space_bounds

PROBABILITY, SCORE = "probability", "score"
MATCH, NO_MATCH = "match", "no match"


class ExplainedOutput(NamedTuple):
    """What is explained: an output's number, and 1, or -1 where the answer is that it is low."""

    output: int
    sign: int = 1


@dataclass(frozen=True)
class Explanation:
    """A row and its answer.

    Attributes:
        explained: Name of the answer.
        value: Its probability, or the score.
        unit: "probability" or "score".
        answers: All answers with their values.
        words: Of the row.
        droppable: Numbers of the words that may be dropped; without words to drop there is no deletion test.
        measure: The value when some sets of words are dropped, float [sets].
        attributions: Tokens, attention maps and word scores.
        notes: What a reader should know.
    """

    explained: str
    value: float
    unit: str
    answers: list[tuple[str, float]]
    words: list[str]
    droppable: list[int]
    measure: Callable[[Sequence[Collection[int]]], np.ndarray]
    attributions: Attributions
    notes: list[str] = field(default_factory=list)


class TextModel(Protocol):
    """A classifier or a matcher, from wherever it was loaded.

    Attributes:
        labels: Names of its outputs.
        decides: Whether its only output is the probability of a match.
        scores: Whether its only output is a score and no probability.
        pooling: How tokens become the vector that is judged.
        notes: What a reader should know of any row.
    """

    labels: list[str]
    decides: bool
    scores: bool
    pooling: str
    notes: list[str]

    def probabilities(self, rows: Sequence[tuple[str, ...]]) -> np.ndarray:
        """float32 [R, C] of rows of one text or two."""
        ...

    def matches(self, row: tuple[str, ...]) -> bool:
        """Whether a pair matches, where the model decides that."""
        ...

    def word_bounds(self, text: str) -> list[tuple[int, int]]:
        """First character of each word of a text, and the one after its last."""
        ...

    def tokenize_words(self, name: str, words: Sequence[str]) -> list[list[str]]:
        """The tokens of each word alone, without special ones, as the sequence of that name is cut."""
        ...

    def trace(self, row: tuple[str, ...], chosen: ExplainedOutput) -> RowTrace:
        """What it looks at."""
        ...


def explain_text(model: TextModel, row: tuple[str, ...], label: str = "") -> Explanation:
    """A text, or a pair of texts, asked of a classifier or of a matcher.

    Args:
        model: Answers it.
        row: One text or two.
        label: The label to explain; empty: the best one.

    Raises:
        InputError: There is no such label, or the texts have no tokens.
    """
    found = model.probabilities([row])[0]
    chosen, explained = _chosen(model, row, found, label)
    trace = model.trace(row, chosen)
    if all(len(tokens) <= 2 for tokens in trace.tokens.values()):
        raise InputError(f"TEXT: expected a text with tokens, got {' and '.join(map(repr, row))}")
    words, of_tokens = words_of(model, row, trace)
    notes = list(model.notes)
    if words is None:
        notes.append("The tokens are not those of single words, so no word can be dropped.")
        of_tokens = {name: [NO_WORD] * len(tokens) for name, tokens in trace.tokens.items()}
    elif words.texts != row and len(words.spans) < sum(len(model.word_bounds(text)) for text in row):
        notes.append(f"The model read the first {len(words.spans)} words; the rest was cut off.")
    known = TextWords(row, ()) if words is None else words

    def measure(drops: Sequence[Collection[int]]) -> np.ndarray:
        values = model.probabilities([known.without(drop) for drop in drops])[:, chosen.output]
        return values if chosen.sign > 0 or model.scores else 1 - values

    values = found if chosen.sign > 0 or model.scores else 1 - found
    return Explanation(
        explained,
        float(values[chosen.output]),
        SCORE if model.scores else PROBABILITY,
        [(name, float(value)) for name, value in zip(model.labels, found, strict=True)],
        known.names,
        list(range(len(known.spans))),
        measure,
        build_attributions(trace, of_tokens, model.pooling),
        notes,
    )


def _chosen(
    model: TextModel, row: tuple[str, ...], found: np.ndarray, label: str
) -> tuple[ExplainedOutput, str]:
    if model.scores or model.decides:
        if label:
            raise InputError(
                f"--label: expected a run with labels, got one with a single score and {label!r}"
            )
        if model.scores:
            return ExplainedOutput(0), SCORE
        return (ExplainedOutput(0), MATCH) if model.matches(row) else (ExplainedOutput(0, -1), NO_MATCH)
    if label and label not in model.labels:
        raise InputError(f"--label: expected one of {', '.join(model.labels)}, got {label!r}")
    output = model.labels.index(label) if label else int(found.argmax())
    return ExplainedOutput(output), model.labels[output]


def words_of(
    model: TextModel, row: tuple[str, ...], trace: RowTrace
) -> tuple[TextWords | None, dict[str, list[int]]]:
    """The words that the model has read, and which of them each token stands for; None where they cannot be told."""
    for bounds in (model.word_bounds, white_space_bounds):
        words = TextWords(row, tuple((text, *span) for text, each in enumerate(row) for span in bounds(each)))
        of_tokens = _of_tokens(model, words, trace)
        if of_tokens is None:
            continue
        # A word is read where every way to cut the texts shows it.
        read = sorted({word for each in of_tokens.values() for word in each} - {NO_WORD})
        numbers = {word: place for place, word in enumerate(read)} | {NO_WORD: NO_WORD}
        renumbered = {name: [numbers[word] for word in each] for name, each in of_tokens.items()}
        return words.read(read), renumbered
    return None, {}


def _of_tokens(model: TextModel, words: TextWords, trace: RowTrace) -> dict[str, list[int]] | None:
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
    """A tagger, from wherever it was loaded.

    Attributes:
        labels: Names of the tags.
        notes: What a reader should know of any sentence.
    """

    labels: list[str]
    notes: list[str]

    def tagged(self, sentences: Sequence[Sequence[str]]) -> list[tuple[list[int], np.ndarray]]:
        """Of sentences given as words the tags' numbers, and their probabilities, float32 [W, K]."""
        ...

    def trace(self, words: Sequence[str], word: int, tag: int) -> tuple[RowTrace, list[int], list[int]]:
        """What it looks at where it tags a word, which word each token stands for, and the tokens it judges."""
        ...


def explain_tag(model: TagModel, words: Sequence[str], label: str = "", number: int = 0) -> Explanation:
    """A sentence asked of a tagger.

    Args:
        model: Tags it.
        words: Of the sentence.
        label: The tag to explain; empty: the one given.
        number: Of the word to explain, from 1; 0: the first one with a tag other than O.

    Raises:
        InputError: There is no such tag or word, or none at all.
    """
    if not words:
        raise InputError("TEXT: expected a text with words, got one without")
    if number > len(words):
        raise InputError(f"--word: expected 1 to {len(words)}, the words of the text, got {number}")
    if label and label not in model.labels:
        raise InputError(f"--label: expected one of {', '.join(model.labels)}, got {label!r}")
    ((tags, probabilities),) = model.tagged([words])
    telling = (place for place, tag in enumerate(tags) if model.labels[tag] != "O")
    word = number - 1 if number else next(telling, 0)
    tag = model.labels.index(label) if label else tags[word]
    trace, of_tokens, read_from = model.trace(words, word, tag)

    def measure(drops: Sequence[Collection[int]]) -> np.ndarray:
        kept = [[each for place, each in enumerate(words) if place not in drop] for drop in drops]
        places = [word - sum(each < word for each in drop) for drop in drops]
        found = model.tagged(kept)
        return np.array([each[place, tag] for (_, each), place in zip(found, places, strict=True)])

    (name,) = trace.tokens
    notes = list(model.notes)
    if len(set(of_tokens) - {NO_WORD}) < len(words):
        notes.append("The sentence is longer than a window: shown is the window in which the word is tagged.")
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
