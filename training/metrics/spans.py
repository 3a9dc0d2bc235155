"""Scores of tagged sentences, as JSON-able Python values: of their spans, and of their words.

A span is right if its first word, its last word and its type are. Spans are read strictly (see
`kmha.tags.strict_spans_of`), in what was wanted and in what was given, as seqeval's strict mode does. The
conventions are those of `training.metrics.classification`: a score with nothing to divide by is 0, and None without sentences.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from kmha.tags import Scheme, Span, strict_spans_of
from training.metrics.bootstrap import percentile_interval, resample_weights
from training.metrics.confusion import (
    LabelCounts,
    confusion_matrix,
    f1,
    matrix_counts,
    mean_over,
    micro_f1,
    occurring,
    precision,
    recall,
)

Tags = Sequence[Sequence[str]]
"""Tags of the words of each sentence."""


def tag_scores(gold: Tags, predicted: Tags, scheme: Scheme) -> dict[str, Any]:
    """Scores the tags given to sentences.

    Args:
        gold: The tags wanted.
        predicted: The tags given, as many for each sentence.
        scheme: How both spell spans; "none" where each word stands for itself.

    Returns:
        rows (sentences), words and token_accuracy; of spans precision, recall and span_f1 (all types pooled),
        macro_f1 (mean over the types that are wanted or given), `types` (sorted), per_type {type: precision,
        recall, f1, support} and confusion_matrix: T + 1 rows for what was wanted, T + 1 columns for what was
        given, in the order of types. It pairs spans of the same words; the last column counts spans that were
        missed, the last row spans where none was wanted. With scheme "none" macro_f1, types, per_type and
        confusion_matrix [T, T] are those of the tags, and there are no spans.

    Raises:
        InputError: A tag that the scheme does not have.
        ValueError: The lengths differ.
    """
    _check(gold, predicted)
    words = sum(map(len, gold))
    scores: dict[str, Any] = {
        "rows": len(gold),
        "words": words,
        "token_accuracy": float(_sentence_counts(gold, predicted, "none")[:, 0].sum() / words)
        if words
        else None,
    }
    if scheme == "none":
        expected, given = ([tag for tags in part for tag in tags] for part in (gold, predicted))
        types = sorted({*expected, *given})
        counts, matrix = _tag_counts(expected, given, types)
    else:
        pairs = [
            (_by_words(one, scheme), _by_words(other, scheme))
            for one, other in zip(gold, predicted, strict=True)
        ]
        types = sorted({name for sides in pairs for spans in sides for name in spans.values()})
        counts, matrix = _span_counts(pairs, types)
        total = LabelCounts(*(part.sum() for part in counts))
        totals = {"precision": precision(total), "recall": recall(total), "span_f1": f1(total)}
        scores |= {name: float(value) if len(gold) else None for name, value in totals.items()}
    columns = {"precision": precision(counts), "recall": recall(counts), "f1": f1(counts)}
    scores["macro_f1"] = float(mean_over(columns["f1"], occurring(counts))) if len(gold) else None
    scores["types"] = types
    scores["per_type"] = {
        name: {each: float(column[place]) for each, column in columns.items()}
        | {"support": int(counts.actual[place])}
        for place, name in enumerate(types)
    }
    scores["confusion_matrix"] = matrix.tolist()
    return scores


def tag_intervals(
    gold: Tags,
    predicted: Tags,
    scheme: Scheme,
    *,
    seed: int = 0,
    resamples: int = 1000,
    level: float = 0.95,
) -> dict[str, list[float]]:
    """Gives bootstrap intervals: sentences are resampled, because words of one are no independent draws.

    Args:
        gold: The tags wanted.
        predicted: The tags given.
        scheme: How both spell spans.
        seed: Makes the intervals repeatable.
        resamples: Number of resamples.
        level: Probability mass inside each interval, in (0, 1).

    Returns:
        token_accuracy, and span_f1 where the scheme has spans, each [lower, upper]; empty without words.

    Raises:
        InputError: A tag that the scheme does not have.
        ValueError: The lengths differ.
    """
    _check(gold, predicted)
    if not any(map(len, gold)):
        return {}
    # Sentences with the same counts are alike.
    counts, sizes = np.unique(_sentence_counts(gold, predicted, scheme), axis=0, return_counts=True)
    accuracies, scores = [], []
    for weights in resample_weights(sizes, seed, resamples):
        right, words, hits, given, expected = (weights @ counts).T
        accuracies.append(right / np.maximum(words, 1))
        scores.append(micro_f1(LabelCounts(*(each[:, None] for each in (hits, given, expected)))))
    named = {"token_accuracy": accuracies} | ({} if scheme == "none" else {"span_f1": scores})
    return {name: list(percentile_interval(np.concatenate(parts), level)) for name, parts in named.items()}


def _check(gold: Tags, predicted: Tags) -> None:
    if len(gold) != len(predicted):
        raise ValueError(f"expected tags of as many sentences, got {len(gold)} and {len(predicted)}")
    for place, (one, other) in enumerate(zip(gold, predicted, strict=True)):
        if len(one) != len(other):
            raise ValueError(f"sentence {place}: expected as many tags, got {len(one)} and {len(other)}")


def _by_words(tags: Sequence[str], scheme: Scheme) -> dict[tuple[int, int], str]:
    """Types of the spans of a sentence, by their words; spans do not overlap, so no two have the same."""
    return {(span.first, span.end): span.type for span in strict_spans_of(tags, scheme)}


def _sentence_counts(gold: Tags, predicted: Tags, scheme: Scheme) -> np.ndarray:
    """Right words, words, right spans, spans given and spans wanted of each sentence, int64 [R, 5]."""
    counts = np.zeros((len(gold), 5), np.int64)
    for place, (expected, given) in enumerate(zip(gold, predicted, strict=True)):
        right = sum(one == other for one, other in zip(expected, given, strict=True))
        counts[place, :2] = right, len(expected)
        if scheme != "none":
            sides: tuple[set[Span], ...] = tuple(
                set(strict_spans_of(tags, scheme)) for tags in (expected, given)
            )
            counts[place, 2:] = len(sides[0] & sides[1]), len(sides[1]), len(sides[0])
    return counts


def _tag_counts(expected: list[str], given: list[str], types: list[str]) -> tuple[LabelCounts, np.ndarray]:
    numbers = {name: place for place, name in enumerate(types)}
    true_ids, answers = (np.array([numbers[tag] for tag in tags], np.int64) for tags in (expected, given))
    matrix = confusion_matrix(true_ids, answers, len(types))
    return matrix_counts(matrix), matrix


def _span_counts(
    pairs: Sequence[tuple[dict[tuple[int, int], str], ...]], types: list[str]
) -> tuple[LabelCounts, np.ndarray]:
    numbers = {name: place for place, name in enumerate(types)} | {None: len(types)}
    cells: Counter[tuple[int, int]] = Counter()
    for expected, given in pairs:
        for words in expected.keys() | given.keys():
            cells[numbers[expected.get(words)], numbers[given.get(words)]] += 1
    matrix = np.zeros((len(types) + 1, len(types) + 1), np.int64)
    for cell, count in cells.items():
        matrix[cell] = count
    counts = matrix_counts(matrix)
    # What is no span has no score.
    return LabelCounts(*(part[:-1] for part in counts)), matrix


_SENTENCES_SHOWN = 3
_WORDS_AROUND = 5


class _Error(NamedTuple):
    """A span that was wanted, given, or both but not alike."""

    expected: Span | None
    given: Span | None

    @property
    def kind(self) -> tuple[str | None, str | None, bool | None]:
        """What counts as the same error: the types, and whether the words were the same ones."""
        if self.expected is None or self.given is None:
            return self.expected and self.expected.type, self.given and self.given.type, None
        return self.expected.type, self.given.type, self.expected[:2] == self.given[:2]


def most_frequent_errors(
    words: Sequence[Sequence[str]],
    gold: Sequence[Sequence[str]],
    predicted: Sequence[Sequence[str]],
    scheme: Scheme,
    most: int = 20,
    places: Sequence[str] | None = None,
) -> list[dict[str, Any]]:
    """Groups the errors in sentences by what was wanted and what was given, the most frequent first.

    Spans are read strictly. A span that was wanted and not given is held against the wrong one that shares most words
    with it; a wrong one that is then left over was not wanted at all.

    Args:
        words: Of each sentence.
        gold: The tags wanted.
        predicted: The tags given.
        scheme: How both spell spans; with "none" errors are those of words.
        most: How many kinds of errors to give.
        places: Where the sentences stand, for example `test.conll:12`; None: not known.

    Returns:
        JSON values, for each kind: `wanted` and `given`, the types, None where there was no span; `same_words`, None
        unless there were both; `count`; and `sentences`, the first three: `text`, the words around with
        those in question, `wanted` and `given`, the words of the spans (None where there was none), and `place`
        where it is known.

    Raises:
        InputError: A tag that the scheme does not have.
        ValueError: The lengths differ.
    """
    kinds: dict[tuple, dict[str, Any]] = {}
    for row, (these, expected, given) in enumerate(zip(words, gold, predicted, strict=True)):
        if not len(these) == len(expected) == len(given):
            raise ValueError(f"sentence {row}: expected a tag for each of {len(these)} words twice")
        place = {} if places is None else {"place": places[row]}
        for error in _errors(strict_spans_of(expected, scheme), strict_spans_of(given, scheme)):
            names = dict(zip(("expected", "given", "same_words"), error.kind, strict=True))
            kind = kinds.setdefault(error.kind, {**names, "count": 0, "sentences": []})
            kind["count"] += 1
            if len(kind["sentences"]) < _SENTENCES_SHOWN:
                kind["sentences"].append(_shown(these, error) | place)
    # Equal counts stay in the order of the sentences.
    return sorted(kinds.values(), key=lambda kind: -kind["count"])[:most]


def _errors(expected: Sequence[Span], given: Sequence[Span]) -> list[_Error]:
    right = set(expected) & set(given)
    wrong = [span for span in given if span not in right]
    at_word = {word: span for span in wrong for word in range(span.first, span.end)}
    errors, paired = [], set()
    for span in expected:
        if span not in right:
            shared = Counter(at_word.get(word) for word in range(span.first, span.end))
            others = [(count, other) for other, count in shared.items() if other and other not in paired]
            other = max(others, key=lambda each: each[0], default=(0, None))[1]
            paired.add(other)
            errors.append(_Error(span, other))
    errors += [_Error(None, span) for span in wrong if span not in paired]
    return sorted(errors, key=lambda error: min(span.first for span in error if span is not None))


def _shown(words: Sequence[str], error: _Error) -> dict[str, str | None]:
    spans = [span for span in error if span is not None]
    first = max(0, min(span.first for span in spans) - _WORDS_AROUND)
    end = min(len(words), max(span.end for span in spans) + _WORDS_AROUND)
    # Words of one character each are those of a script without spaces.
    gap = "" if all(len(word) == 1 for word in words) else " "
    text = gap.join(words[first:end])
    return {
        "text": f"{'… ' if first else ''}{text}{' …' if end < len(words) else ''}",
        "expected": None
        if error.expected is None
        else gap.join(words[error.expected.first : error.expected.end]),
        "given": None if error.given is None else gap.join(words[error.given.first : error.given.end]),
    }
