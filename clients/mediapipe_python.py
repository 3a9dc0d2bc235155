"""MediaPipe Tasks' TextClassifier in Python, from raw text."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from clients.environments import clean_environment, python_environment, reason
from clients.material import ReportData
from clients.outcome import NotRunError, Outcome, compared, not_run

VERSION = "1.2.2"
PROGRAM = Path(__file__).resolve().parent / "programs" / "mediapipe_texts.py"
# Its own tokenizer normalises some characters in another way than the run's: accents and full-width punctuation.
LEAST_AGREEMENT = 0.99
SECONDS = 600


def check_metadata(bundle) -> None:
    """Whether MediaPipe can run a bundle's model.

    Raises:
        NotRunError: It has no tokenizer for it.
    """
    from export.tflite.metadata import has_metadata

    if not has_metadata(bundle, 1, False):
        kind = bundle.preprocessor.tokenization
        raise NotRunError(f"MediaPipe has no tokenizer for a model of {kind} tokens")


def exact_rows(texts: Sequence[str]) -> list[bool]:
    """For each text whether MediaPipe's tokenizer makes the run's tokens of it for sure: plain ASCII."""
    return [text.isascii() for text in texts]


def outcome(material: ReportData) -> Outcome:
    """The outcome of MediaPipe in an environment of its own."""
    name = f"MediaPipe Tasks in Python {VERSION}"
    try:
        check_metadata(material.bundle)
        python = python_environment(material.environments / "mediapipe", [f"mediapipe=={VERSION}"])
    except NotRunError as error:
        return not_run(name, str(error))
    asked = {"model": str(material.tflite), "texts": material.texts, "labels": material.bundle.labels}
    result = subprocess.run(
        [python, str(PROGRAM)],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        env=clean_environment(),
        timeout=SECONDS,
    )
    if result.returncode:
        return Outcome(name, "raw text", len(material.texts), problem=f"failed: {reason(result.stderr)}")
    answer = json.loads(result.stdout)
    found = np.array(answer["probabilities"], np.float32)
    thresholds, seconds = material.bundle.thresholds, answer["seconds"]
    exact = exact_rows(material.texts)
    return compared(name, "raw text", material.expected, found, thresholds, LEAST_AGREEMENT, exact, seconds)
