"""Explanations of artificial models whose scores are known."""

import dataclasses
from collections.abc import Collection, Sequence

import numpy as np

from training.explanation.attributions import NO_WORD, RowTrace, build_attributions, linear_trace
from training.explanation.explainer import Explanation, LinearPart


def softmax(values: np.ndarray) -> np.ndarray:
    each = np.exp(values)
    return (each / each.sum(axis=-1, keepdims=True)).astype(np.float32)


def weights(*shape: int, seed: int = 0) -> np.ndarray:
    return softmax(3 * np.random.default_rng(seed).normal(size=shape))


def explanation(
    words: Sequence[str] = ("old", "bread", "at", "seven"),
    worth: Sequence[float] = (0.1, 0.4, 0.0, 0.2),
    layers: int = 2,
    heads: int = 3,
    unit: str = "probability",
) -> Explanation:
    """Of a classifier whose probability is the sum of the worth of its words."""
    tokens = ["[CLS]", *words, "[SEP]"]
    numbers = [NO_WORD, *range(len(words)), NO_WORD]
    attention = weights(layers, heads, len(tokens), len(tokens))
    gradients = np.array([0, *worth, 0], np.float32)
    trace = RowTrace({"tokens": tokens}, {"attention": attention}, {"tokens": gradients})

    def measure(drops: Sequence[Collection[int]]) -> np.ndarray:
        return np.array([sum(w for place, w in enumerate(worth) if place not in drop) for drop in drops])

    value = float(sum(worth))
    predictions = [("bread", value), ("harbour", 1 - value)]
    droppable = list(range(len(words)))
    attributions = build_attributions(trace, {"tokens": numbers}, "mean")
    return Explanation("bread", value, unit, predictions, list(words), droppable, measure, attributions)


def linear_explanation(has_attention: bool = True) -> Explanation:
    """As `explanation`, of a model with a linear path in which each word adds ten times its worth to the logit."""
    whole = explanation()
    worth = [0.0, *(10 * each for each in (0.1, 0.4, 0.0, 0.2)), 0.0]
    ngrams = np.array(worth)[:, None, None] * [1.0, 0.0]
    linear = linear_trace(ngrams, ngrams.sum(axis=(0, 1)), np.zeros(2), 0, multi_label=True)
    (row,) = whole.attributions.sequences
    maps = whole.attributions.maps
    attention = {"attention": maps[0].weights} if has_attention else {}
    gradients = {"tokens": row.gradient} if has_attention and row.gradient is not None else None
    trace = RowTrace({"tokens": row.tokens}, attention, gradients, linear=linear)
    listed = [(f"<b>ngram{number}", (-1) ** number * (3.0 - number / 10)) for number in range(12)]
    part = LinearPart(linear.logit, -0.25, 0.5, False, listed)
    attributions = build_attributions(trace, {"tokens": row.words}, "mean")
    return dataclasses.replace(whole, attributions=attributions, linear=part)


def pair_explanation(hostile: str = "bread") -> Explanation:
    """Of a matcher in the cross form."""
    a, b = ["[CLS]", "old", hostile, "[SEP]"], ["[CLS]", "new", "[SEP]"]
    attention = {
        "attention_a": weights(2, 2, 4, 4),
        "attention_b": weights(2, 2, 3, 3, seed=1),
        "attention_a_to_b": weights(1, 2, 4, 3, seed=2),
        "attention_b_to_a": weights(1, 2, 3, 4, seed=3),
    }
    trace = RowTrace({"tokens_a": a, "tokens_b": b}, attention, None)
    words = {"tokens_a": [-1, 0, 1, -1], "tokens_b": [-1, 2, -1]}

    def measure(drops: Sequence[Collection[int]]) -> np.ndarray:
        return np.array([0.9 - 0.2 * len(drop) for drop in drops])

    attributions = build_attributions(trace, words, "mean")
    return Explanation(
        "match",
        0.9,
        "probability",
        [("score", 0.9)],
        ["old", hostile, "new"],
        [0, 1, 2],
        measure,
        attributions,
    )
