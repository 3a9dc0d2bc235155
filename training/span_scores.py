"""Scores of tagged sentences, as JSON-able Python values: of their spans, and of their words.

A span is right if its first word, its last word and its type are. Spans are read strictly (see
`kmha.tag_schemes.strict_spans_of`), in what was wanted and in what was given, as seqeval's strict mode does. The
conventions are those of `training.scores`: a score with nothing to divide by is 0, and None without sentences.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from kmha.tag_schemes import Scheme, Span, strict_spans_of
from training.confusion import (
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
from training.intervals import percentile_interval, resample_weights

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
        wanted, given = ([tag for tags in part for tag in tags] for part in (gold, predicted))
        types = sorted({*wanted, *given})
        counts, matrix = _tag_counts(wanted, given, types)
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
        right, words, hits, given, wanted = (weights @ counts).T
        accuracies.append(right / np.maximum(words, 1))
        scores.append(micro_f1(LabelCounts(*(each[:, None] for each in (hits, given, wanted)))))
    named = {"token_accuracy": accuracies} | ({} if scheme == "none" else {"span_f1": scores})
    return {name: list(percentile_interval(np.concatenate(parts), level)) for name, parts in named.items()}


def _check(gold: Tags, predicted: Tags) -> None:
    if len(gold) != len(predicted):
        raise ValueError(f"wanted tags of as many sentences, got {len(gold)} and {len(predicted)}")
    for place, (one, other) in enumerate(zip(gold, predicted, strict=True)):
        if len(one) != len(other):
            raise ValueError(f"sentence {place}: wanted as many tags, got {len(one)} and {len(other)}")


def _by_words(tags: Sequence[str], scheme: Scheme) -> dict[tuple[int, int], str]:
    """Types of the spans of a sentence, by their words; spans do not overlap, so no two have the same."""
    return {(span.first, span.end): span.type for span in strict_spans_of(tags, scheme)}


def _sentence_counts(gold: Tags, predicted: Tags, scheme: Scheme) -> np.ndarray:
    """Right words, words, right spans, spans given and spans wanted of each sentence, int64 [R, 5]."""
    counts = np.zeros((len(gold), 5), np.int64)
    for place, (wanted, given) in enumerate(zip(gold, predicted, strict=True)):
        right = sum(one == other for one, other in zip(wanted, given, strict=True))
        counts[place, :2] = right, len(wanted)
        if scheme != "none":
            sides: tuple[set[Span], ...] = tuple(
                set(strict_spans_of(tags, scheme)) for tags in (wanted, given)
            )
            counts[place, 2:] = len(sides[0] & sides[1]), len(sides[1]), len(sides[0])
    return counts


def _tag_counts(wanted: list[str], given: list[str], types: list[str]) -> tuple[LabelCounts, np.ndarray]:
    numbers = {name: place for place, name in enumerate(types)}
    true_ids, answers = (np.array([numbers[tag] for tag in tags], np.int64) for tags in (wanted, given))
    matrix = confusion_matrix(true_ids, answers, len(types))
    return matrix_counts(matrix), matrix


def _span_counts(
    pairs: Sequence[tuple[dict[tuple[int, int], str], ...]], types: list[str]
) -> tuple[LabelCounts, np.ndarray]:
    numbers = {name: place for place, name in enumerate(types)} | {None: len(types)}
    cells: Counter[tuple[int, int]] = Counter()
    for wanted, given in pairs:
        for words in wanted.keys() | given.keys():
            cells[numbers[wanted.get(words)], numbers[given.get(words)]] += 1
    matrix = np.zeros((len(types) + 1, len(types) + 1), np.int64)
    for cell, count in cells.items():
        matrix[cell] = count
    counts = matrix_counts(matrix)
    # What is no span has no score.
    return LabelCounts(*(part[:-1] for part in counts)), matrix
