"""The attention view as one HTML file that asks nobody: its elements, and the data that its script reads."""

import base64
import json
from string import Template
from typing import Any

import numpy as np

from training.explanation.attention_rollout import count_heads
from training.explanation.deletion_test import ATTENTION, GRADIENT, LEFT_OUT, RANDOM
from training.explanation.explainer import SCORE, Explanation
from training.explanation.words import NO_WORD
from training.html.page import asset, html_page

# Attention weights are written in so many steps from 0 to 1.
STEPS = 65535
MOST_ANSWERS = 6
# The share of words that the sentence about the deletion test is about.
TOLD_SHARE = 0.25
CAUTION = (
    "Attention shows where each head reads from, not why the model decided; the deletion test measures how far the two"
    " agree."
)
_METHODS = {
    "rollout": (
        "Attention rollout",
        "How much of each token all layers together mix into the answer, as a share of all.",
        False,
    ),
    GRADIENT: (
        "Gradient × input",
        "How far the answer's logit moves, to first order, on the way from an unknown token to this one.",
        True,
    ),
    LEFT_OUT: (
        "Left out",
        "How far the answer really falls when the word is dropped and the model is asked again.",
        True,
    ),
}
_COLUMNS = {
    ATTENTION: "most attended (rollout)",
    GRADIENT: "gradient × input",
    LEFT_OUT: "left out one by one",
    RANDOM: "random words",
}


def page(
    question: Explanation, scores: dict[str, np.ndarray], deletion: dict[str, Any] | None, where: str
) -> str:
    """The HTML of a view.

    Args:
        question: A row and what the model looked at.
        scores: What each method says of each word, float [W].
        deletion: The deletion test; None where there was nothing to drop.
        where: What is written above the answer.
    """
    data = embedded(view(question, scores, deletion, where))
    return html_page(
        f"{question.explained} · attention view",
        Template(asset("training.explanation", "page.html")).substitute(data=data),
        asset("training.explanation", "page.css"),
        asset("training.explanation", "page.js"),
    )


def view(
    question: Explanation, scores: dict[str, np.ndarray], deletion: dict[str, Any] | None, where: str
) -> dict[str, Any]:
    """What the page's script reads, as JSON values."""
    gradients = GRADIENT in scores
    methods = [name for name in _METHODS if name != GRADIENT or gradients]
    methods = [name for name in methods if name != LEFT_OUT or question.droppable]
    sequences = []
    for row in question.attributions.sequences:
        by_word = [0.0 if word == NO_WORD else float(scores[LEFT_OUT][word]) for word in row.words]
        gradient = {} if row.gradient is None else {GRADIENT: row.gradient.tolist()}
        shown = {"name": row.name, "tokens": row.tokens, "words": row.words, "rollout": row.rollout.tolist()}
        sequences.append({**shown, **gradient, LEFT_OUT: by_word})
    best = sorted(question.answers, key=lambda answer: -answer[1])
    return {
        "where": where,
        "explained": question.explained,
        "value": question.value,
        "unit": question.unit,
        "best": best[0][0],
        "answers": best[:MOST_ANSWERS] if len(best) > 1 else [],
        "caution": CAUTION,
        "notes": question.notes,
        "methods": [
            dict(zip(("key", "name", "hint", "signed"), (name, *_METHODS[name]), strict=True))
            for name in methods
        ],
        "sequences": sequences,
        "maps": [_map(each) for each in question.attributions.maps],
        "deletion": deletion,
        "deletion_hint": _deletion_hint(question, deletion),
        "deletion_columns": [
            {"key": key, "name": name}
            for key, name in _COLUMNS.items()
            if deletion and key in deletion["steps"][0]
        ],
        "verdict": verdict(question, deletion),
    }


def _map(given) -> dict[str, Any]:
    layers, heads = given.weights.shape[:2]
    steps = np.round(np.clip(given.weights, 0, 1) * STEPS).astype("<u2")
    return {
        "name": given.name,
        "unit": "Round" if given.round else "Layer",
        "layers": layers,
        "heads": heads,
        "there": [count_heads(layer) for layer in given.weights],
        "rows": given.rows,
        "columns": given.columns,
        "weights": base64.b64encode(steps.tobytes()).decode("ascii"),
    }


def _deletion_hint(question: Explanation, deletion: dict[str, Any] | None) -> str:
    if deletion is None:
        return "Wanted two words or more that can be dropped; there are none here."
    unit = (
        "The change of the score"
        if question.unit == SCORE
        else "The change of the probability, in percentage points,"
    )
    return (
        f"{unit} when words are dropped and the model is asked again: those that each method holds for the most"
        f" important, and as many at random (mean of {deletion['draws']} draws, least and largest in brackets)."
    )


def verdict(question: Explanation, deletion: dict[str, Any] | None) -> str:
    """The deletion test in a sentence; empty where there is none."""
    if deletion is None:
        return ""
    step = min(deletion["steps"], key=lambda each: abs(each["dropped"] - TOLD_SHARE * deletion["words"]))

    def shown(fall: float) -> str:
        change = f"{-fall:+.3f}" if question.unit == SCORE else f"{-100 * fall:+.1f} points"
        return change.replace("-", "−")

    words = "the most attended word" if step["dropped"] == 1 else f"the {step['dropped']} most attended words"
    chance = "a random one" if step["dropped"] == 1 else f"{step['dropped']} random ones"
    return (
        f"Without {words} the answer changes by {shown(step[ATTENTION])}, without {chance} by {shown(step[RANDOM])}."
        " One text proves little: training.explain --data FILE measures many."
    )


def embedded(values: Any) -> str:
    """JSON that can stand in an HTML script element: nothing in it ends the element or starts a comment."""
    written = json.dumps(values, allow_nan=False, separators=(",", ":"))
    return written.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
