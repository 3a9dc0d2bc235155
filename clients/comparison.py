"""Exports a run, which every client receives, and compares the predictions of a client with those of the run."""

import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

logger = logging.getLogger("kmha")

NAME = "news"


@dataclass(frozen=True)
class ExportedRun:
    """A run, its exports, and its probabilities for some texts, float32 [R, C].

    The folder has site/ (the demo page with its models, and plain.tflite and plain.onnx without attention), served/
    (SavedModel) and environments/.
    """

    bundle: Any
    texts: list[str]
    expected: np.ndarray
    folder: Path

    @property
    def site(self) -> Path:
        """The folder that the browser loads."""
        return self.folder / "site"

    @property
    def tflite(self) -> Path:
        """The .tflite for the run's maximum length, with metadata where MediaPipe can run it."""
        return self.site / "plain.tflite"

    @property
    def savedmodel(self) -> Path:
        """The folder of the SavedModel's version."""
        return self.folder / "served" / NAME / "1"


def export_run(bundle, texts: Sequence[str], folder: Path, fill_site) -> ExportedRun:
    """Exports a bundle in every format, in place of earlier exports; `fill_site` is from examples/browser/fill.py."""
    from export.onnx.write import write_onnx
    from export.savedmodel.write import write_savedmodel
    from export.tflite.write import write_tflite

    exported = ExportedRun(bundle, list(texts), bundle.probabilities(list(texts)), folder)
    logger.info("exporting: models of the demo page, TFLite, ONNX, SavedModel")
    fill_site(bundle, exported.site)
    write_tflite(bundle, exported.tflite, [bundle.preprocessor.max_length], overwrite=True)
    write_onnx(bundle, exported.site / "plain.onnx", overwrite=True)
    shutil.rmtree(folder / "served", ignore_errors=True)
    write_savedmodel(bundle, exported.savedmodel.parent)
    return exported


FLOAT_TOLERANCE = 1e-4


class ClientUnavailableError(Exception):
    """A client cannot run on this machine; the message is the reason."""


@dataclass(frozen=True)
class ClientResult:
    """How one client compares with the run."""

    client: str  # its name and version
    inputs: str = ""  # "raw text", "typed text" or "ids of tokenizer.js"
    rows: int = 0
    agreeing: int = 0  # texts with the same prediction
    difference: float = float("nan")  # the largest of a probability; NaN if the client shows labels only
    seconds: float | None = None  # for all texts, without loading
    problem: str = ""  # why it failed or did not run
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
    """Compares a client's probabilities float [R, C] with those of the run.

    `min_agreement` is the share of texts that must have the same prediction: the most probable label, or the labels
    that reach their thresholds. Probabilities of `exact_rows` (None: all) must be equal within FLOAT_TOLERANCE.
    """
    problem = ""
    if found.shape != expected.shape:
        problem = f"expected probabilities {list(expected.shape)}, got {list(found.shape)}"
    elif not np.isfinite(found).all():
        problem = "expected finite probabilities, got NaN or infinity"
    if problem:
        return ClientResult(client, inputs, len(expected), problem=problem)
    same = _predictions(expected, thresholds) == _predictions(found, thresholds)
    agreeing = int(same.reshape(len(expected), -1).all(axis=1).sum())
    differences = np.abs(expected - found)
    difference = float(differences.max(initial=0))
    exact = differences if exact_rows is None else differences[np.asarray(exact_rows, bool)]
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
