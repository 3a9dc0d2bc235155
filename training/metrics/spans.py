"""Scores of tagged sentences as JSON values: of spans and of words.

A span is right if its first word, last word and type are right. Spans are read strictly, in labels and predictions (see
`kmha.tags.strict_spans_of`), as in seqeval's strict mode. A score without a denominator is 0, and None without
sentences. InputError is raised for a tag that the scheme does not have, ValueError for other lengths of labels and
predictions.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from kmha.tags import Scheme, Span, strict_spans_of
from training.metrics.bootstrap import ResampledScores, Statistics
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
    scores_by_label,
)

Tags = Sequence[Sequence[str]]
"""Tags of the words of each sentence."""

_SENTENCES_SHOWN = 3
_WORDS_AROUND = 5


def tag_scores(gold: Tags, predicted: Tags, scheme: Scheme) -> dict[str, Any]:
    """Scores the predicted tags of sentences; the scheme of both is "none" if there are no spans.

    Returns:
        rows (sentences), words and token_accuracy; for spans precision, recall and span_f1 (all types pooled), macro_f1
        (mean over the types), `types` (sorted, in labels or predictions), per_type {type: precision, recall, f1,
        support} and confusion_matrix: T + 1 rows for the labels, T + 1 columns for the predictions, in the order of
        `types`. It pairs spans of the same words; the last column counts missed spans, the last row spurious spans.
        With scheme "none", macro_f1, types, per_type and confusion_matrix [T, T] are those of the tags.
    """
    _check(gold, predicted)
    words = sum(map(len, gold))
    right = _right_words(gold, predicted).sum()
    scores: dict[str, Any] = {"rows": len(gold), "words": words}
    scores["token_accuracy"] = float(right / words) if words else None
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
    scores["macro_f1"] = float(mean_over(f1(counts), occurring(counts))) if len(gold) else None
    per_type = scores_by_label(counts, types)
    return scores | {"types": types, "per_type": per_type, "confusion_matrix": matrix.tolist()}


def tag_resampled(gold: Tags, predicted: Tags, scheme: Scheme) -> ResampledScores:
    """`token_accuracy`, `macro_f1` and, if the scheme has spans, `span_f1`; empty without words.

    Sentences are resampled, since the words of a sentence are not independent.
    """
    _check(gold, predicted)
    if not any(map(len, gold)):
        gold, predicted = (), ()
    rows = _sentence_counts(gold, predicted, scheme)

    def statistics(counts: np.ndarray) -> Statistics:
        def scores(weights: np.ndarray) -> dict[str, np.ndarray]:
            sums = weights @ counts
            by_type = LabelCounts(*np.split(sums[:, 2:], 3, axis=1))
            spans = {} if scheme == "none" else {"span_f1": micro_f1(by_type)}
            macro_f1 = mean_over(f1(by_type), occurring(by_type))
            return {"token_accuracy": sums[:, 0] / np.maximum(sums[:, 1], 1), **spans, "macro_f1": macro_f1}

        return scores

    return ResampledScores(rows, statistics)


def _check(gold: Tags, predicted: Tags) -> None:
    if len(gold) != len(predicted):
        raise ValueError(f"expected tags of as many sentences, got {len(gold)} and {len(predicted)}")
    for place, (one, other) in enumerate(zip(gold, predicted, strict=True)):
        if len(one) != len(other):
            raise ValueError(f"sentence {place}: expected as many tags, got {len(one)} and {len(other)}")


def _by_words(tags: Sequence[str], scheme: Scheme) -> dict[tuple[int, int], str]:
    """Types of the spans of a sentence by (first, end); spans do not overlap, so the keys are unique."""
    return {(span.first, span.end): span.type for span in strict_spans_of(tags, scheme)}


def _sentence_counts(gold: Tags, predicted: Tags, scheme: Scheme) -> np.ndarray:
    """Right words and words of each sentence, then right, predicted and labeled spans by type: int64 [R, 2 + 3 T].

    With scheme "none", tags take the place of spans.
    """
    words = np.array([len(tags) for tags in gold], np.int64)
    # (sentence, type) of each right, predicted and labeled span
    found: tuple[list[tuple[int, str]], ...] = ([], [], [])
    for place, (expected, given) in enumerate(zip(gold, predicted, strict=True)):
        one, other = (_items(tags, scheme) for tags in (expected, given))
        for places, items in zip(found, (one & other, other, one), strict=True):
            places += [(place, name) for *_, name in items]
    types = sorted({name for places in found for _, name in places})
    numbers = {name: number for number, name in enumerate(types)}
    counts = np.zeros((3, len(gold), len(numbers)), np.int64)
    for table, places in zip(counts, found, strict=True):
        if places:
            np.add.at(table, ([row for row, _ in places], [numbers[name] for _, name in places]), 1)
    return np.concatenate([_right_words(gold, predicted)[:, None], words[:, None], *counts], axis=1)


def _items(tags: Sequence[str], scheme: Scheme) -> set[tuple]:
    """The spans of a sentence, or with scheme "none" its words: tuples that end with the type."""
    return set(enumerate(tags)) if scheme == "none" else set(strict_spans_of(tags, scheme))


def _right_words(gold: Tags, predicted: Tags) -> np.ndarray:
    """The number of words of each sentence whose predicted tag is right, int64 [R]."""
    pairs = (zip(*pair, strict=True) for pair in zip(gold, predicted, strict=True))
    return np.array([sum(one == other for one, other in pair) for pair in pairs], np.int64)


def _tag_counts(expected: list[str], given: list[str], types: list[str]) -> tuple[LabelCounts, np.ndarray]:
    numbers = {name: place for place, name in enumerate(types)}
    true_ids, predictions = (np.array([numbers[tag] for tag in tags], np.int64) for tags in (expected, given))
    matrix = confusion_matrix(true_ids, predictions, len(types))
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
    # "No span" has no score.
    return LabelCounts(*(part[:-1] for part in counts)), matrix


class _Error(NamedTuple):
    """A labeled and a predicted span that differ; None if there is no such span."""

    expected: Span | None
    given: Span | None

    @property
    def kind(self) -> tuple[str | None, str | None, bool | None]:
        """Errors of the same kind are counted together: both types, and whether the words are the same."""
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
    """Groups errors by labeled and predicted type, the most frequent first.

    A missed span is paired with the wrong span that shares most words with it; other wrong spans are spurious. With the
    scheme "none", errors are those of words. At most `most` kinds are returned. `places` has file and line of each
    sentence, such as `test.conll:12`.

    Returns:
        JSON values for each kind: `wanted` and `given`, the labeled and predicted type, None without a span;
        `same_words`, None without both; `count`; and the first three `sentences`: `text` (the span with its context),
        `wanted` and `given` (the words of the spans, or None), and `place` if known.
    """
    kinds: dict[tuple, dict[str, Any]] = {}
    for row, (these, expected, given) in enumerate(zip(words, gold, predicted, strict=True)):
        if not len(these) == len(expected) == len(given):
            raise ValueError(f"sentence {row}: expected a tag for each of {len(these)} words twice")
        place = {} if places is None else {"place": places[row]}
        for error in _errors(strict_spans_of(expected, scheme), strict_spans_of(given, scheme)):
            names = dict(zip(("wanted", "given", "same_words"), error.kind, strict=True))
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
    # Words of one character are from a script without spaces.
    gap = "" if all(len(word) == 1 for word in words) else " "
    text = gap.join(words[first:end])
    sides = (None if span is None else gap.join(words[span.first : span.end]) for span in error)
    shown = f"{'… ' if first else ''}{text}{' …' if end < len(words) else ''}"
    return {"text": shown, **dict(zip(("wanted", "given"), sides, strict=True))}
