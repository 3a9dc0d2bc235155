"""What every client is given: texts, the run's own answers, and the exports."""

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
class ReportData:
    """A run, its exports and its answers.

    Attributes:
        bundle: The run.
        texts: To answer.
        wanted: The run's probabilities of them, float32 [R, C].
        folder: Holds site/ (the demo page with its models), plain.tflite and plain.onnx (without attention) in it,
            served/ (SavedModel) and environments/.
    """

    bundle: Any
    texts: list[str]
    expected: np.ndarray
    folder: Path

    @property
    def site(self) -> Path:
        """The folder that the browser is served."""
        return self.folder / "site"

    @property
    def tflite(self) -> Path:
        """For any text of the run's longest length, with metadata where MediaPipe can run it."""
        return self.site / "plain.tflite"

    @property
    def savedmodel(self) -> Path:
        """The version's folder."""
        return self.folder / "served" / NAME / "1"

    @property
    def environments(self) -> Path:
        """Where environments are kept."""
        return self.folder / "environments"


def prepared(bundle, texts: Sequence[str], folder: Path, fill) -> ReportData:
    """Exports a run in every format.

    Args:
        bundle: A trained bundle.
        texts: To answer.
        folder: To write to; exports of earlier runs are replaced.
        fill: The demo page's own function that fills a site.

    Raises:
        InputError: An export fails.
    """
    from export.onnx.__main__ import write_onnx
    from export.savedmodel.__main__ import write_savedmodel
    from export.tflite.__main__ import write_tflite

    material = ReportData(bundle, list(texts), bundle.probabilities(list(texts)), folder)
    logger.info("exporting: the demo page's models, TFLite, ONNX, SavedModel")
    fill(bundle, material.site)
    write_tflite(bundle, material.tflite, [bundle.preprocessor.max_length], overwrite=True)
    write_onnx(bundle, material.site / "plain.onnx", overwrite=True)
    shutil.rmtree(folder / "served", ignore_errors=True)
    write_savedmodel(bundle, material.savedmodel.parent)
    return material
