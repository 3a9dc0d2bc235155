"""Compares the predictions of one client with those of the run."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

FLOAT_TOLERANCE = 1e-4


class ClientUnavailableError(Exception):
    """A client cannot run on this machine; the message is the reason."""


@dataclass(frozen=True)
class ClientResult:
    """How one client compares with the run.

    Attributes:
        client: Its name and version.
        inputs: What it received: "raw text", "typed text" or "ids of tokenizer.js".
        rows: Texts compared; 0 if the client did not run.
        agreeing: Texts with the same prediction.
        difference: Largest difference of a probability; NaN if the client shows labels only.
        seconds: Time for all texts, without loading; None if not measured.
        problem: Why it failed or did not run; empty on success.
        ran: Whether the client made predictions.
    """

    client: str
    inputs: str = ""
    rows: int = 0
    agreeing: int = 0
    difference: float = float("nan")
    seconds: float | None = None
    problem: str = ""
    ran: bool = True


def compare(
    client: str,
    inputs: str,
    expected: np.ndarray,
    found: np.ndarray,
    thresholds: Sequence[float] | None,
    min_agreement: float = 1.0,
    exact_rows: Sequence[bool] | None = None,
    seconds: float | None = None,
) -> ClientResult:
    """Compares a client's probabilities with those of the run.

    Args:
        client: Its name and version.
        inputs: What it received.
        expected: Probabilities of the run, float [R, C].
        found: Probabilities of the client, float [R, C].
        thresholds: One for each label of a multi-label run; None: the most probable label is the prediction.
        min_agreement: Share of texts that must have the same prediction.
        exact_rows: Texts whose probabilities must be equal within FLOAT_TOLERANCE; None: all.
        seconds: Time for all texts.
    """
    if found.shape != expected.shape:
        problem = f"expected probabilities {list(expected.shape)}, got {list(found.shape)}"
        return ClientResult(client, inputs, len(expected), problem=problem)
    if not np.isfinite(found).all():
        problem = "expected finite probabilities, got NaN or infinity"
        return ClientResult(client, inputs, len(expected), problem=problem)
    same = _predictions(expected, thresholds) == _predictions(found, thresholds)
    agreeing = int(same.reshape(len(expected), -1).all(axis=1).sum())
    differences = np.abs(expected - found)
    difference = float(differences.max(initial=0))
    exact = differences if exact_rows is None else differences[np.asarray(exact_rows, bool)]
    problem = ""
    if agreeing < min_agreement * len(expected):
        problem = (
            f"expected at least {min_agreement:.0%} equal predictions, got {agreeing} of {len(expected)}"
        )
    elif exact.max(initial=0) > FLOAT_TOLERANCE:
        problem = f"expected probabilities within {FLOAT_TOLERANCE:g}, got a difference of {exact.max():.1e}"
    return ClientResult(client, inputs, len(expected), agreeing, difference, seconds, problem)


def _predictions(probabilities: np.ndarray, thresholds: Sequence[float] | None) -> np.ndarray:
    if thresholds is None:
        return probabilities.argmax(axis=1)
    return probabilities >= np.asarray(thresholds, np.float32)


def not_run(client: str, reason: str) -> ClientResult:
    """The result of a client that cannot run on this machine."""
    return ClientResult(client, problem=f"not run: {' '.join(reason.split())}", ran=False)


def failure(client: str, inputs: str, rows: int, error: Exception | str) -> ClientResult:
    """The result of a client that started and failed."""
    return ClientResult(client, inputs, rows, problem=f"failed: {' '.join(str(error).split())}")


def any_failed(results: Sequence[ClientResult], allow_missing: bool) -> bool:
    """Whether a client disagrees, or did not run although it is required."""
    return any(result.problem and (result.ran or not allow_missing) for result in results)


def result_table(results: Sequence[ClientResult]) -> str:
    """A Markdown table with one line for each client; problems follow as lines below."""
    head = ("client", "input", "same prediction", "largest difference", "ms per text", "result")
    rows = [head, *(_cells(result) for result in results)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    lines += [f"{result.client}: {result.problem}" for result in results if result.problem]
    return "\n".join(lines)


def _cells(result: ClientResult) -> tuple[str, ...]:
    if not result.ran:
        return (result.client, "", "", "", "", "not run")
    return (
        result.client,
        result.inputs,
        f"{result.agreeing} of {result.rows}",
        "" if np.isnan(result.difference) else f"{result.difference:.1e}",
        "" if result.seconds is None else f"{1000 * result.seconds / max(1, result.rows):.2f}",
        "differs" if result.problem else "agrees",
    )
