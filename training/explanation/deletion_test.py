"""The deletion test: how far a prediction falls without the words that a method ranks first."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from training.explanation.explainer import Explanation
from training.metrics.bootstrap import bootstrap_interval

ATTENTION, GRADIENT, NGRAMS = "attention", "gradient", "ngrams"
LEFT_OUT, RANDOM = "left_out", "random"
METHODS = {
    ATTENTION: "attention",
    GRADIENT: "gradient × input",
    NGRAMS: "n-grams",
    LEFT_OUT: "left out",
    RANDOM: "random",
}
# Largest share of the words that is dropped, and number of steps up to it.
MAX_SHARE, MAX_STEPS = 0.5, 8
# Shares that are dropped in the test over many rows.
SHARES = (0.1, 0.2, 0.3, 0.5)
MIN_WORDS = 2


def leave_one_out(explanation: Explanation) -> np.ndarray:
    """How far the value falls without each word, float [W]; 0 for words that cannot be dropped."""
    drops = np.zeros(len(explanation.words))
    if explanation.droppable:
        whole, *without = explanation.measure([(), *((word,) for word in explanation.droppable)])
        drops[explanation.droppable] = whole - np.asarray(without)
    return drops


def word_scores(explanation: Explanation) -> dict[str, np.ndarray]:
    """Scores of each word by method, float [W]."""
    scores = explanation.attributions.word_scores(len(explanation.words))
    return {**scores, LEFT_OUT: leave_one_out(explanation)}


def drop_counts(count: int) -> list[int]:
    """Numbers of words to drop, from 1 to half of them, in at most eight steps."""
    most = max(int(count * MAX_SHARE), 1)
    return sorted({round(each) for each in np.linspace(1, most, min(most, MAX_STEPS))}) if count else []


def top_words(explanation: Explanation, scores: np.ndarray) -> np.ndarray:
    """The words that can be dropped, int [W], those with the highest scores, float [W], first."""
    droppable = np.array(explanation.droppable)
    return droppable[np.argsort(-scores[droppable], kind="stable")]


def best_method(test: dict[str, Any]) -> str:
    """The method whose first words lower the value most, on average of the steps of a `deletion_test`.

    It is "left_out", which measures each word itself, only if no other method is better than random words.
    """
    means = {
        name: float(np.mean([step[name] for step in test["steps"]]))
        for name in METHODS
        if name in test["steps"][0]
    }
    means.pop(LEFT_OUT, None)
    best = max(means, key=lambda name: means[name])
    return LEFT_OUT if best == RANDOM else best


def value_drops(
    explanation: Explanation,
    scores: dict[str, np.ndarray],
    numbers: Sequence[int],
    draws: int,
    generator: np.random.Generator,
) -> list[dict[str, Any]]:
    """Drops the words with the highest scores, float [W], of each method, and as many random words, and predicts again.

    Returns:
        For each number {"dropped": number, method: how far the value falls, "random": mean of the draws,
        "random_low" and "random_high": their minimum and maximum}.
    """
    droppable = np.array(explanation.droppable)
    orders = {name: top_words(explanation, values) for name, values in scores.items()}
    shuffled = [generator.permutation(droppable) for _ in range(draws)]
    every = [*orders.values(), *shuffled]
    sets = [frozenset(order[:number].tolist()) for number in numbers for order in every]
    distinct = list(dict.fromkeys([frozenset(), *sets]))
    values = dict(zip(distinct, explanation.measure(distinct).tolist(), strict=True))
    whole = values[frozenset()]
    drops = np.array([whole - values[each] for each in sets]).reshape(len(numbers), -1)
    found = []
    for number, row in zip(numbers, drops, strict=True):
        chance = row[len(orders) :]
        by_method = dict(zip(orders, row.tolist(), strict=False))
        drawn = {RANDOM: chance.mean(), f"{RANDOM}_low": chance.min(), f"{RANDOM}_high": chance.max()}
        found.append({"dropped": number, **by_method, **{name: float(each) for name, each in drawn.items()}})
    return found


def deletion_test(
    explanation: Explanation, scores: dict[str, np.ndarray], draws: int, seed: int
) -> dict[str, Any] | None:
    """Runs the test on one row: {"words": droppable ones, "draws", "steps": `value_drops`}; None for fewer than two."""
    count = len(explanation.droppable)
    if count < MIN_WORDS:
        return None
    steps = value_drops(explanation, scores, drop_counts(count), draws, np.random.default_rng(seed))
    return {"words": count, "draws": draws, "steps": steps}


def average_deletion_test(
    explanations: Iterable[Explanation | None], draws: int, seed: int
) -> dict[str, Any]:
    """Runs the test on many rows, with shares of their words; None are rows that cannot be explained.

    Returns:
        {"rows", "skipped": rows with fewer than two words, "words": mean, "draws", "value": mean of the predictions,
        "shares": [{"share", method: mean drop, "attention_minus_random": mean, "interval": its 95 % bootstrap
        interval over rows}]}; without attention "ngrams_minus_random" instead, without rows no shares.
    """
    generator = np.random.default_rng(seed)
    found: list[list[dict[str, Any]]] = []
    words, values, skipped = [], [], 0
    for explanation in explanations:
        count = 0 if explanation is None else len(explanation.droppable)
        if explanation is None or count < MIN_WORDS:
            skipped += 1
            continue
        numbers = [max(1, round(share * count)) for share in SHARES]
        found.append(value_drops(explanation, word_scores(explanation), numbers, draws, generator))
        words.append(count)
        values.append(explanation.value)
    result = {"rows": len(found), "skipped": skipped, "draws": draws}
    if not found:
        return {**result, "shares": []}
    shares = []
    for place, share in enumerate(SHARES):
        known = [name for name in METHODS if name in found[0][0]]
        columns = {name: np.array([row[place][name] for row in found]) for name in known}
        first = known[0]
        ahead = columns[first] - columns[RANDOM]
        low, high = bootstrap_interval(lambda rows: float(rows.mean()), ahead)
        means = {name: float(column.mean()) for name, column in columns.items()}
        difference = {f"{first}_minus_random": float(ahead.mean()), "interval": [float(low), float(high)]}
        shares.append({"share": share, **means, **difference})
    return {**result, "words": float(np.mean(words)), "value": float(np.mean(values)), "shares": shares}


def average_table(result: dict[str, Any]) -> list[str]:
    """The result of `average_deletion_test` as lines of a table."""
    if not result["shares"]:
        return ["no row had two words or more to drop"]
    methods = [name for name in METHODS if name in result["shares"][0]]
    first = methods[0]
    names = "".join(f"{METHODS[name]:>18}" for name in methods)
    lines = [f"dropped{names}   {METHODS[first]} − random"]
    for each in result["shares"]:
        low, high = each["interval"]
        cells = "".join(f"{each[name]:18.3f}" for name in methods)
        difference = f"{each[f'{first}_minus_random']:+.3f} ({low:+.3f} to {high:+.3f})"
        lines.append(f"{each['share']:>7.0%}{cells}   {difference}")
    return lines
