"""What a client's answers amount to beside the run's."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

FLOAT_TOLERANCE = 1e-4


class NotRunError(Exception):
    """A client could not be had here; the message is the exact reason."""


@dataclass(frozen=True)
class Outcome:
    """How one client compares with the run.

    Attributes:
        client: Its name and version.
        given: What it was given: "raw text" or "token ids".
        rows: Texts compared; 0 where it was not run.
        agreeing: Of them, those with the same answer.
        difference: Largest difference of a probability; NaN: not seen.
        seconds: Time of all texts, loading excluded; None: not measured.
        problem: Why it was not run, or failed; empty where all is well.
        ran: Whether it answered at all.
    """

    client: str
    given: str = ""
    rows: int = 0
    agreeing: int = 0
    difference: float = float("nan")
    seconds: float | None = None
    problem: str = ""
    ran: bool = True


def compared(
    client: str,
    given: str,
    expected: np.ndarray,
    found: np.ndarray,
    thresholds: Sequence[float] | None,
    least_agreement: float = 1.0,
    exact_rows: Sequence[bool] | None = None,
    seconds: float | None = None,
) -> Outcome:
    """Compares a client's probabilities with the run's.

    Args:
        client: Its name and version.
        given: What it was given.
        expected: The run's, float [R, C].
        found: The client's, float [R, C].
        thresholds: With several labels, those of the run; None: the best label is the answer.
        least_agreement: Share of texts that must have the run's answer.
        exact_rows: Texts whose probabilities must be the run's, but for rounding; None: all.
        seconds: Time of all texts.
    """
    if found.shape != expected.shape:
        problem = f"expected probabilities {list(expected.shape)}, got {list(found.shape)}"
        return Outcome(client, given, len(expected), problem=problem)
    if not np.isfinite(found).all():
        return Outcome(client, given, len(expected), problem="answers that are not finite numbers")
    same = _answers(expected, thresholds) == _answers(found, thresholds)
    agreeing = int(same.reshape(len(expected), -1).all(axis=1).sum())
    differences = np.abs(expected - found)
    difference = float(differences.max(initial=0))
    exact = differences if exact_rows is None else differences[np.asarray(exact_rows, bool)]
    problem = ""
    if agreeing < least_agreement * len(expected):
        problem = f"expected at least {least_agreement:.0%} of the answers to agree"
    elif exact.max(initial=0) > FLOAT_TOLERANCE:
        problem = f"expected probabilities within {FLOAT_TOLERANCE:g}, got a difference of {exact.max():.1e}"
    return Outcome(client, given, len(expected), agreeing, difference, seconds, problem)


def _answers(probabilities: np.ndarray, thresholds: Sequence[float] | None) -> np.ndarray:
    if thresholds is None:
        return probabilities.argmax(axis=1)
    return probabilities >= np.asarray(thresholds, np.float32)


def not_run(client: str, reason: str) -> Outcome:
    """The outcome of a client that could not be had."""
    return Outcome(client, problem=f"not run: {' '.join(reason.split())}", ran=False)


def failed(outcomes: Sequence[Outcome], allow_missing: bool) -> bool:
    """Whether one disagrees, or was not run and had to be."""
    return any(outcome.problem and (outcome.ran or not allow_missing) for outcome in outcomes)


def table(outcomes: Sequence[Outcome]) -> str:
    """One line a client, as Markdown; problems as lines below."""
    head = ("client", "given", "same answer", "largest difference", "ms a text", "verdict")
    lines = [head, *(_cells(outcome) for outcome in outcomes)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    written = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"
        for line in lines
    ]
    written.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    written += [f"{outcome.client}: {outcome.problem}" for outcome in outcomes if outcome.problem]
    return "\n".join(written)


def _cells(outcome: Outcome) -> tuple[str, ...]:
    if not outcome.ran:
        return (outcome.client, "", "", "", "", "not run")
    milliseconds = "" if outcome.seconds is None else f"{1000 * outcome.seconds / max(1, outcome.rows):.2f}"
    return (
        outcome.client,
        outcome.given,
        f"{outcome.agreeing} of {outcome.rows}",
        "" if np.isnan(outcome.difference) else f"{outcome.difference:.1e}",
        milliseconds,
        "differs" if outcome.problem else "agrees",
    )
