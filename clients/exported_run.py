"""A run with its exports and predictions: what every client receives."""

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
    """A run, its exports and its predictions.

    Attributes:
        bundle: The run.
        texts: Texts to classify.
        expected: Probabilities of the run for these texts, float32 [R, C].
        folder: Holds site/ (the demo page with its models, and plain.tflite and plain.onnx without attention),
            served/ (SavedModel) and environments/.
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

    @property
    def environments(self) -> Path:
        """The folder of virtual environments."""
        return self.folder / "environments"


def export_run(bundle, texts: Sequence[str], folder: Path, fill_site) -> ExportedRun:
    """Exports a run in every format.

    Args:
        bundle: A trained bundle.
        texts: Texts to classify.
        folder: Output folder; exports of earlier runs are replaced.
        fill_site: `fill` of examples/browser/fill.py.

    Raises:
        InputError: An export fails.
    """
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
