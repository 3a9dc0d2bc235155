"""Checks that a run can be exported, and that an exported tagger gives the predictions of its run."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from kmha.bundle.manifest import CLASSIFY, MASKED_LM, MODEL_NAMES, read_manifest
from kmha.errors import InputError

TOLERANCE = 1e-4
# Lower limit of probabilities before the logarithm.
LEAST = 1e-30


def check_exportable(run: Path) -> None:
    """Raises InputError if the folder is no run folder, or its model cannot be exported."""
    task = read_manifest(run)["task"]
    if task == MASKED_LM:
        raise InputError(
            f"{run}: expected a classifier, a matcher or a tagger, got {MODEL_NAMES[task]};"
            f" start one from it with training.fit --encoder.pretrained {run}"
        )


def check_single_texts(run: Path, command: str) -> None:
    """Raises InputError, with the command's name, if the folder is not the run folder of a classifier."""
    task = read_manifest(run)["task"]
    if task != CLASSIFY:
        raise InputError(
            f"{run}: expected a classifier, since {command} takes single texts, got {MODEL_NAMES[task]}"
        )


class CheckError(Exception):
    """An exported model fails a check, or its predictions differ from its bundle's; the message is one line."""


def tag_difference(
    found: Mapping[str, np.ndarray],
    expected: Mapping[str, np.ndarray],
    word_mask: np.ndarray,
    exact: bool,
    place: str = "",
) -> float:
    """The largest difference of a tag's probability in windows, by the names of `export.graph`.

    Outputs are [V, W, …], word masks int32 [V, W]; 1 = to be tagged. `exact` ones must be equal within 1e-4
    (float32); `place` is a prefix of messages. Raises CheckError if an output is NaN or infinite, or they differ;
    different tags count only if they are less probable.
    """
    for name, values in found.items():
        if not np.isfinite(values).all():
            raise CheckError(
                f"{place}expected finite numbers, got {values[~np.isfinite(values)][0]} in {name}"
            )
    tagged = word_mask > 0
    differences = np.abs(found["probabilities"] - expected["probabilities"])[tagged]
    largest = float(differences.max(initial=0.0))
    if not exact:
        return largest
    # Two paths may be equally probable, so the tags themselves may differ.
    paths = np.abs(_path_logs(found, tagged) - _path_logs(expected, tagged))
    worst = max(largest, float(paths.max(initial=0.0)))
    if worst > TOLERANCE:
        raise CheckError(
            f"{place}expected the run's tags within {TOLERANCE:g}, got a difference of {worst:.2g}"
        )
    return largest


def _path_logs(outputs: Mapping[str, np.ndarray], tagged: np.ndarray) -> np.ndarray:
    """The mean log probability of a word of each window's path, [V]."""
    logs = np.log(np.maximum(outputs["path_probabilities"], LEAST))
    return (logs * tagged).sum(axis=1) / np.maximum(tagged.sum(axis=1), 1)
