"""Calibrating a trained model on labelled rows of its task."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from kmha.bundle_files import task_of
from kmha.calibration import Calibration
from kmha.layers.crf_decoding import marginals
from kmha.manifest import CLASSIFY, MATCH, TAG
from kmha.tagging import word_batches
from training.calibration import LEAST_ROWS, fit_each, fit_temperature, lowest_loss
from training.distill_losses import softened
from training.examples import label_ids
from training.tasks.task import Part

_LEAST_PROBABILITY = 1e-30


def gives_probabilities(model: Any) -> bool:
    """Whether the answers of a model to a row, or a word, are probabilities that can be calibrated."""
    kind = task_of(model)
    return kind in (CLASSIFY, TAG) or (kind == MATCH and model.target != "graded")


def fitted(model: Any, task: Any, part: Part, labels: Sequence[str], raw: np.ndarray) -> Calibration | None:
    """The calibration of a model that fits labelled rows; rows whose label it does not know say nothing.

    Args:
        model: A built classifier, matcher or tagger.
        task: Reads the rows.
        part: The rows, which the model has not been trained on.
        labels: Names of the outputs.
        raw: What the model gives: of the rows the logits float32 [R, C], of all their words the scores float32 [N, K].

    Returns:
        None where the rows are too few, or where none would make them more probable.
    """
    if task_of(model) == TAG:
        return _tag_temperature(model, raw, *tag_ids(task, part, labels))
    if task_of(model) == CLASSIFY and model.multi_label:
        return fit_each(raw, task.targets(part, labels))
    if task_of(model) == MATCH and model.target == "binary":
        return fit_each(raw, task.targets(part, labels)[:, :1])
    ids, _ = label_ids(part.examples, part.rows, labels)
    known = ids < len(labels)
    return fit_temperature(raw[known], ids[known])


def one_answer(
    task: Any,
    part: Part,
    labels: Sequence[str],
    probabilities: np.ndarray,
    thresholds: Sequence[float] | None,
) -> tuple[np.ndarray, np.ndarray]:
    """The probability of the only answer to each row, float32 [R], and whether it is right, bool [R].

    Args:
        task: Reads the rows.
        part: The rows.
        labels: Names of the outputs.
        probabilities: float32 [R, C]; with a threshold [R, 1], of a match.
        thresholds: None, or from which probability a pair matches.
    """
    if thresholds is None:
        ids, _ = label_ids(part.examples, part.rows, labels)
        return probabilities.max(axis=1), probabilities.argmax(axis=1) == ids
    score = np.asarray(probabilities, np.float32)[:, 0]
    match = score >= np.float32(thresholds[0])
    return np.where(match, score, np.float32(1) - score), match == (task.targets(part, labels)[:, 0] > 0)


def told(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Calibration error and loss of the same rows before and after, from their scores, as JSON values."""
    return {
        name: value
        for score in ("ece", "loss")
        for name, value in ((f"{score}_before", before[score]), (score, after[score]))
    }


def described(calibration: Calibration, before: dict[str, Any], after: dict[str, Any]) -> str:
    """One line that tells the temperatures and what they did to the calibration error."""
    lowest, highest = min(calibration.temperatures), max(calibration.temperatures)
    shown = f"temperature {lowest:.3f}" + (f" to {highest:.3f}" if highest > lowest else "")
    errors = [before["ece"], after["ece"]]
    if None in errors:
        return shown
    return f"{shown}, calibration error {errors[0]:.4f} before, {errors[1]:.4f} after"


def tag_ids(task: Any, part: Part, labels: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """The tag of each word, int32 [N], -1 where the model does not know it, and words of each sentence, int64 [R]."""
    places = {label: place for place, label in enumerate(labels)}
    sentences = [task.learnt(tags) for tags in task.given_tags(part)]
    ids = [places.get(tag, -1) for tags in sentences for tag in tags]
    return np.array(ids, np.int32), np.array([len(tags) for tags in sentences], np.int64)


def _tag_temperature(
    model: Any, scores: np.ndarray, ids: np.ndarray, counts: np.ndarray
) -> Calibration | None:
    """The temperature under which the right tags of words, over all paths, are the most probable."""
    if (ids >= 0).sum() < LEAST_ROWS:
        return None
    signature = [
        tf.TensorSpec([None, None, model.num_labels]),
        tf.TensorSpec([None, None], tf.int32),
        tf.TensorSpec([]),
    ]

    @tf.function(input_signature=signature, autograph=False)
    def probabilities(scores, mask, temperature):
        return marginals(softened(model.potentials(scores, mask), temperature))

    batches = list(_batches(scores, ids, counts))

    def loss(scale: float) -> float:
        total, temperature = 0.0, np.float32(1.0 / scale)
        for padded, wanted in batches:
            found = probabilities(padded, (wanted > -2).astype(np.int32), temperature).numpy()
            rows, words = np.nonzero(wanted >= 0)
            right = found[rows, words, wanted[rows, words]].astype(np.float64)
            total -= np.log(np.maximum(right, _LEAST_PROBABILITY)).sum()
        return float(total)

    return lowest_loss(loss)


def _batches(scores: np.ndarray, ids: np.ndarray, counts: np.ndarray) -> Any:
    """Sentences of similar lengths: scores float32 [B, W, K] and tag ids int32 [B, W], -2 where there is no word."""
    for places, mask in word_batches(counts):
        padded = np.zeros((*mask.shape, scores.shape[1]), np.float32)
        wanted = np.full(mask.shape, -2, np.int32)
        padded[mask], wanted[mask] = scores[places], ids[places]
        yield padded, wanted
