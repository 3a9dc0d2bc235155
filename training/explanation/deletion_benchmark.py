"""The deletion test over many rows: what a method's favourite words are worth on average."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from training.explanation.deletion_test import ATTENTION, GRADIENT, LEFT_OUT, RANDOM, falls, word_scores
from training.explanation.explainer import Explanation
from training.metrics.bootstrap import bootstrap_interval

SHARES = (0.1, 0.2, 0.3, 0.5)
FEWEST_WORDS = 2
_NAMES = {ATTENTION: "attention", GRADIENT: "gradient × input", LEFT_OUT: "left out", RANDOM: "random"}


def measured(questions: Iterable[Explanation | None], draws: int, seed: int) -> dict[str, Any]:
    """Drops shares of the words of every row.

    Args:
        questions: Rows; None for those that cannot be asked.
        draws: How often random words are drawn from each.
        seed: Makes them repeatable.

    Returns:
        {"rows", "skipped": rows with fewer than two words, "words": mean, "draws", "value": mean of the answers,
        "shares": [{"share", method: mean fall of the answer, "attention_minus_random": mean, "interval": its 95 %
        bootstrap interval over rows}]}; without rows no shares.
    """
    generator = np.random.default_rng(seed)
    found: list[list[dict[str, Any]]] = []
    words, values, skipped = [], [], 0
    for question in questions:
        count = 0 if question is None else len(question.droppable)
        if question is None or count < FEWEST_WORDS:
            skipped += 1
            continue
        numbers = [max(1, round(share * count)) for share in SHARES]
        found.append(falls(question, word_scores(question), numbers, draws, generator))
        words.append(count)
        values.append(question.value)
    result = {"rows": len(found), "skipped": skipped, "draws": draws}
    if not found:
        return {**result, "shares": []}
    methods = [name for name in _NAMES if name in found[0][0]]
    shares = []
    for place, share in enumerate(SHARES):
        columns = {name: np.array([row[place][name] for row in found]) for name in methods}
        ahead = columns[ATTENTION] - columns[RANDOM]
        interval = bootstrap_interval(lambda rows: float(rows.mean()), ahead)
        means = {name: float(column.mean()) for name, column in columns.items()}
        told = {"attention_minus_random": float(ahead.mean()), "interval": [float(end) for end in interval]}
        shares.append({"share": share, **means, **told})
    return {**result, "words": float(np.mean(words)), "value": float(np.mean(values)), "shares": shares}


def table(result: dict[str, Any]) -> list[str]:
    """Lines that show what `measured` gives."""
    if not result["shares"]:
        return ["no row had two words or more to drop"]
    methods = [name for name in _NAMES if name in result["shares"][0]]
    lines = ["".join(["dropped", *(f"{_NAMES[name]:>18}" for name in methods), "   attention − random"])]
    for each in result["shares"]:
        low, high = each["interval"]
        cells = "".join(f"{each[name]:18.3f}" for name in methods)
        lines.append(
            f"{each['share']:>7.0%}{cells}   {each['attention_minus_random']:+.3f} ({low:+.3f} to {high:+.3f})"
        )
    return lines
