"""MediaPipe Tasks' TextClassifier in Python, from raw text."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from clients.comparison import ClientResult, ClientUnavailableError, compare, failure, not_run
from clients.exported_run import ExportedRun
from clients.processes import child_environment, error_line, python_environment

VERSION = "1.2.2"
PROGRAM = Path(__file__).resolve().parent / "programs" / "mediapipe_texts.py"
# MediaPipe's own tokenizer normalizes accents and full-width punctuation differently.
MIN_AGREEMENT = 0.99
SECONDS = 600


def check_metadata(bundle) -> None:
    """Rejects a bundle that MediaPipe has no tokenizer for.

    Raises:
        ClientUnavailableError: The bundle's tokenization is not supported.
    """
    from export.tflite.metadata import has_metadata

    if not has_metadata(bundle, 1, False):
        kind = bundle.preprocessor.tokenization
        raise ClientUnavailableError(f"MediaPipe has no tokenizer for a model of {kind} tokens")


def exact_rows(texts: Sequence[str]) -> list[bool]:
    """For each text, whether MediaPipe's tokenizer makes exactly the run's tokens: plain ASCII."""
    return [text.isascii() for text in texts]


def mediapipe_result(exported: ExportedRun) -> ClientResult:
    """Runs MediaPipe in its own environment."""
    name, inputs = f"MediaPipe Tasks in Python {VERSION}", "raw text"
    try:
        check_metadata(exported.bundle)
        python = python_environment(exported.environments / "mediapipe", [f"mediapipe=={VERSION}"])
    except ClientUnavailableError as error:
        return not_run(name, str(error))
    request = {"model": str(exported.tflite), "texts": exported.texts, "labels": exported.bundle.labels}
    process = subprocess.run(
        [python, str(PROGRAM)],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        env=child_environment(),
        timeout=SECONDS,
    )
    if process.returncode:
        return failure(name, inputs, len(exported.texts), error_line(process.stderr))
    response = json.loads(process.stdout)
    return compare(
        name,
        inputs,
        exported.expected,
        np.array(response["probabilities"], np.float32),
        exported.bundle.thresholds,
        MIN_AGREEMENT,
        exact_rows(exported.texts),
        response["seconds"],
    )
