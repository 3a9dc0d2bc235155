"""The deletion test: how far an answer falls when the words go that a method holds for important."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from training.explanation.explainer import Explanation

ATTENTION, GRADIENT, LEFT_OUT, RANDOM = "attention", "gradient", "left_out", "random"
METHODS = (ATTENTION, GRADIENT, LEFT_OUT, RANDOM)
# Share of the words that is dropped at most.
LARGEST_SHARE = 0.5
MOST_STEPS = 8


def left_out(question: Explanation) -> np.ndarray:
    """How far the value falls without each word, float [W]; 0 of words that must stay."""
    falls = np.zeros(len(question.words))
    if question.droppable:
        whole, *without = question.measure([(), *((word,) for word in question.droppable)])
        falls[question.droppable] = whole - np.asarray(without)
    return falls


def steps(count: int) -> list[int]:
    """How many of some words to drop, from 1 to half of them, eight steps at most."""
    most = max(int(count * LARGEST_SHARE), 1)
    return sorted({round(each) for each in np.linspace(1, most, min(most, MOST_STEPS))}) if count else []


def falls(
    question: Explanation,
    scores: dict[str, np.ndarray],
    numbers: Sequence[int],
    draws: int,
    generator: np.random.Generator,
) -> list[dict[str, Any]]:
    """Drops the best words by each method, and as many random ones, and asks again.

    Args:
        question: The row.
        scores: Of each word by method, float [W]; larger means dropped earlier.
        numbers: How many words to drop at a time.
        draws: How often as many random words are drawn.
        generator: Draws them.

    Returns:
        For each number {"dropped": it, method: how far the value falls, "random": the mean of the draws, "random_low"
        and "random_high": the least and the largest of them}.
    """
    droppable = np.array(question.droppable)
    orders = {
        name: droppable[np.argsort(-values[droppable], kind="stable")] for name, values in scores.items()
    }
    shuffled = [generator.permutation(droppable) for _ in range(draws)]
    drops = [order[:number] for number in numbers for order in (*orders.values(), *shuffled)]
    sets = [frozenset(each.tolist()) for each in drops]
    distinct = list(dict.fromkeys([frozenset(), *sets]))
    values = dict(zip(distinct, question.measure(distinct).tolist(), strict=True))
    whole = values[frozenset()]
    fallen = np.array([whole - values[each] for each in sets]).reshape(len(numbers), -1)
    found = []
    for number, row in zip(numbers, fallen, strict=True):
        chance = row[len(orders) :]
        by_method = dict(zip(orders, row.tolist(), strict=False))
        drawn = {RANDOM: chance.mean(), f"{RANDOM}_low": chance.min(), f"{RANDOM}_high": chance.max()}
        found.append({"dropped": number, **by_method, **{name: float(each) for name, each in drawn.items()}})
    return found


def word_scores(question: Explanation) -> dict[str, np.ndarray]:
    """What each method says of each word, float [W] by method."""
    return {**question.attributions.word_scores(len(question.words)), LEFT_OUT: left_out(question)}


def deletion(
    question: Explanation, scores: dict[str, np.ndarray], draws: int, seed: int
) -> dict[str, Any] | None:
    """The test on one row; None where there are fewer than two words to drop.

    Args:
        question: The row.
        scores: As `word_scores` gives them.
        draws: How often random words are drawn.
        seed: Makes them repeatable.

    Returns:
        {"words": how many may be dropped, "draws": …, "steps": what `falls` gives}.
    """
    count = len(question.droppable)
    if count < 2:
        return None
    found = falls(question, scores, steps(count), draws, np.random.default_rng(seed))
    return {"words": count, "draws": draws, "steps": found}
