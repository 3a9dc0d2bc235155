"""The attention view: one self-contained HTML page with the data of an explanation and a script that draws it."""

import base64
import json
from typing import Any

import numpy as np

from kmha.errors import shorten
from training.explanation.attributions import NO_WORD, HeadMap, count_heads, join_word_pieces
from training.explanation.deletion_test import (
    ATTENTION,
    GRADIENT,
    LEFT_OUT,
    NGRAMS,
    RANDOM,
    best_method,
    top_words,
)
from training.explanation.explainer import SCORE, Explanation
from training.html.page import html_page, read_asset, render

# Attention weights are stored as integers from 0 to this number.
STEPS = 65535
MAX_PREDICTIONS = 6
MAX_NGRAMS = 10
# Words that the summary names.
MAX_NAMED = 4
# Share of dropped words in the summary of the deletion test.
SUMMARY_SHARE = 0.25
CAUTION = (
    "Attention shows where each head reads from, not why the model decided; the deletion test measures how far the two"
    " agree."
)
_BEST = "The deletion test supports this view best."
_NO_BEST = "The deletion test supports no other view: the other methods find words no better than chance."
EVIDENCE = "One text is little evidence: training.explain --data FILE tests many."
EXACT = (
    "The contributions of n-grams are exact: with the bias and the encoder's part they add up to the logit."
)
_ROLLOUT_HINT = "Share of each word in the prediction, by the attention of all layers together."
_GRADIENT_HINT = "First-order change of the predicted logit from unknown tokens to this word."
_NGRAMS_HINT = (
    "What the n-grams of the linear path add to the logit, exactly; split equally over their tokens."
)
_LEFT_OUT_HINT = "Drop of the prediction when the word is removed and the model predicts again."
_VIEWS = [
    {"key": "rollout", "name": "Attention rollout", "hint": _ROLLOUT_HINT, "signed": False},
    {"key": GRADIENT, "name": "Gradient × input", "hint": _GRADIENT_HINT, "signed": True},
    {"key": NGRAMS, "name": "N-grams", "hint": _NGRAMS_HINT, "signed": True},
    {"key": LEFT_OUT, "name": "Left out", "hint": _LEFT_OUT_HINT, "signed": True},
]
_IN_WORDS = {
    ATTENTION: "by attention",
    GRADIENT: "by gradient × input",
    NGRAMS: "by their n-grams",
    LEFT_OUT: "if left out alone",
}
_COLUMNS = {
    ATTENTION: "most attended (rollout)",
    GRADIENT: "gradient × input",
    NGRAMS: "largest n-grams",
    LEFT_OUT: "left out one by one",
    RANDOM: "random words",
}


def page(
    explanation: Explanation, scores: dict[str, np.ndarray], deletion: dict[str, Any] | None, subtitle: str
) -> str:
    """The HTML of an explanation."""
    data = page_data(explanation, scores, deletion, subtitle)
    from markupsafe import Markup

    body = render("training.explanation", "page.html", data=Markup(script_json(data)))
    style, script = (read_asset("training.explanation", name) for name in ("page.css", "page.js"))
    return html_page(f"{explanation.explained} · attention view", body, style, script)


def page_data(
    explanation: Explanation, scores: dict[str, np.ndarray], deletion: dict[str, Any] | None, subtitle: str
) -> dict[str, Any]:
    """The data of the page's script, as JSON values."""
    keys = ({GRADIENT, NGRAMS} & scores.keys()) | ({LEFT_OUT} if explanation.droppable else set())
    keys |= {"rollout"} if ATTENTION in scores else set()
    joined, sequences = join_word_pieces(explanation.attributions), []
    for row in joined.sequences:
        left_out = [0.0 if word == NO_WORD else float(scores[LEFT_OUT][word]) for word in row.words]
        found = {"rollout": row.rollout, GRADIENT: row.gradient, NGRAMS: row.ngrams}
        values = {key: each.tolist() for key, each in found.items() if each is not None}
        shown = {"name": row.name, "tokens": row.tokens, "words": row.words}
        sequences.append({**shown, **values, LEFT_OUT: left_out})
    best_view = best_method(deletion) if deletion else ""
    best_view = "rollout" if best_view == ATTENTION else best_view
    best = sorted(explanation.predictions, key=lambda each: -each[1])
    columns = _COLUMNS.items() if deletion else ()
    return {
        "where": subtitle,
        "explained": explanation.explained,
        "value": explanation.value,
        "unit": explanation.unit,
        "best": best[0][0],
        "predictions": best[:MAX_PREDICTIONS] if len(best) > 1 else [],
        "caution": caution(explanation),
        "summary": summarize(explanation, scores, deletion),
        "notes": explanation.notes,
        "best_hint": "" if not deletion else _NO_BEST if best_view == LEFT_OUT else _BEST,
        "methods": sorted(
            (each for each in _VIEWS if each["key"] in keys), key=lambda each: each["key"] != best_view
        ),
        "sequences": sequences,
        "maps": [_map_data(each) for each in joined.maps],
        "linear": _linear_data(explanation),
        "deletion": deletion,
        "deletion_hint": _deletion_hint(explanation, deletion),
        "deletion_columns": [
            {"key": key, "name": name} for key, name in columns if deletion and key in deletion["steps"][0]
        ],
        "evidence": EVIDENCE if deletion else "",
    }


def caution(explanation: Explanation) -> str:
    """What the reader must know of the methods."""
    maps = [CAUTION] if explanation.attributions.maps else []
    return " ".join([*maps, *([EXACT] if explanation.linear else [])])


def _linear_data(explanation: Explanation) -> dict[str, Any] | None:
    linear = explanation.linear
    if linear is None:
        return None
    count = f"{len(linear.ngrams):,} n-gram{'s' * (len(linear.ngrams) != 1)}"
    shown = min(len(linear.ngrams), MAX_NGRAMS)
    relative = ", relative to the mean of all labels" if linear.is_relative else ""
    return {
        "ngrams": linear.ngrams[:MAX_NGRAMS],
        "hint": f"The parts of the logit{relative}, and the {shown} n-grams with the largest contributions.",
        "parts": [
            [f"{count} (linear path)", linear.logit - linear.bias],
            ["bias (linear path)", linear.bias],
            ["encoder", linear.encoder_logit],
            ["logit", linear.logit + linear.encoder_logit],
        ],
    }


def _map_data(map_: HeadMap) -> dict[str, Any]:
    layers, heads = map_.weights.shape[:2]
    steps = np.round(np.clip(map_.weights, 0, 1) * STEPS).astype("<u2")
    return {
        "name": map_.name,
        "unit": "Round" if map_.round else "Layer",
        "layers": layers,
        "heads": heads,
        "there": [count_heads(layer) for layer in map_.weights],
        "rows": map_.rows,
        "columns": map_.columns,
        "weights": base64.b64encode(steps.tobytes()).decode("ascii"),
    }


def _deletion_hint(explanation: Explanation, deletion: dict[str, Any] | None) -> str:
    if deletion is None:
        return "The deletion test needs at least two words that can be dropped."
    value = "score" if explanation.unit == SCORE else "probability, in percentage points,"
    return (
        f"Change of the {value} when the words that each method ranks first are dropped, and as many random words (mean"
        f" of {deletion['draws']} draws, minimum and maximum in brackets)."
    )


def summarize(
    explanation: Explanation, scores: dict[str, np.ndarray], deletion: dict[str, Any] | None
) -> str:
    """What the best method shows: its first words, and the prediction without them; empty without a deletion test."""
    if deletion is None:
        return ""
    step = min(deletion["steps"], key=lambda each: abs(each["dropped"] - SUMMARY_SHARE * deletion["words"]))
    method, count = best_method(deletion), step["dropped"]

    def change(drop: float) -> str:
        shown = f"{-drop:+.3f}" if explanation.unit == SCORE else f"{-100 * drop:+.1f} points"
        return shown.replace("-", "−")

    words = [explanation.words[each] for each in sorted(top_words(explanation, scores[method])[:count])]
    names = [f"“{shorten(each)}”" for each in words]
    if count > MAX_NAMED:
        names = [*names[: MAX_NAMED - 1], f"{count - MAX_NAMED + 1} more words"]
    one = count == 1
    listed = names[0] if one else f"{', '.join(names[:-1])} and {names[-1]}"
    return (
        f"{listed} {'counts' if one else 'count'} most for {explanation.explained} {_IN_WORDS[method]}: without"
        f" {'it' if one else 'them'} the {explanation.unit} changes by {change(step[method])}, without"
        f" {'a random word' if one else f'{count} random words'} by {change(step[RANDOM])}."
    )


def script_json(values: Any) -> str:
    """JSON for an HTML script element: without characters that end the element or start a comment."""
    text = json.dumps(values, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
