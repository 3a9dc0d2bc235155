"""Calibrating a trained model on labelled rows of its task."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from scipy.optimize import minimize, minimize_scalar
from scipy.special import expit, logsumexp

from kmha.bundle.files import task_of
from kmha.bundle.manifest import CLASSIFY, MATCH, TAG
from kmha.calibration import Calibration
from kmha.inference.tagger import word_batches
from kmha.layers.crf_decoding import marginals
from training.data.types import Subset
from training.io.example_store import label_ids
from training.losses.distillation import softened

# Fewer say too little.
MIN_ROWS = 100
LOWEST, HIGHEST = 0.05, 20.0
_MOST_BIAS = 10.0
# How far the logarithm of a label's temperature, and its bias, are likely to be from those of all labels together.
OWN_SPREAD = 0.5
_BOUNDS = (-np.log(HIGHEST), -np.log(LOWEST))


def fit_temperature(logits: np.ndarray, true_ids: np.ndarray) -> Calibration | None:
    """The temperature of labels that exclude each other.

    Args:
        logits: float [R, C].
        true_ids: int [R], in [0, C).

    Returns:
        None where the rows are too few, or no temperature lowers their loss.
    """
    logits = np.asarray(logits, np.float64)
    if len(logits) < MIN_ROWS:
        return None
    picked = logits[np.arange(len(logits)), true_ids]
    return minimize_loss(lambda scale: float((logsumexp(logits * scale, axis=1) - picked * scale).sum()))


def minimize_loss(loss) -> Calibration | None:
    """The temperature T with the lowest loss of 1 / T, a function that gives the sum over all rows in nats.

    Returns:
        None where T = 1 has no higher one.
    """
    found = minimize_scalar(
        lambda rate: loss(np.exp(rate)) + rate**2 / 2,
        bounds=_BOUNDS,
        method="bounded",
        options={"xatol": 1e-4},
    )
    scale = float(np.exp(found.x))  # pyright: ignore  (scipy's result has it)
    return Calibration((1.0 / scale,)) if loss(scale) < loss(1.0) else None


def fit_per_label(logits: np.ndarray, true: np.ndarray) -> Calibration | None:
    """A temperature and a bias for each of some labels that may hold together.

    Args:
        logits: float [R, C].
        true: 0 or 1, [R, C].

    Returns:
        None where the rows are too few, or nothing lowers their loss.
    """
    logits, true = np.asarray(logits, np.float64), np.asarray(true) != 0
    if len(logits) < MIN_ROWS:
        return None
    shared = _yes_or_no(logits.ravel(), true.ravel(), np.zeros(2), 1.0)
    own = [shared]
    if logits.shape[1] > 1:
        own = [_yes_or_no(*column, shared, OWN_SPREAD) for column in zip(logits.T, true.T, strict=True)]
    rates, biases = np.array(own).T
    found = Calibration(tuple(np.exp(-rates).tolist()), tuple(biases.tolist()))
    return found if _loss(found.apply(logits), true) < _loss(logits, true) else None


def _yes_or_no(logits: np.ndarray, true: np.ndarray, middle: np.ndarray, spread: float) -> np.ndarray:
    """The logarithm of 1 / temperature, and the bias, that lie near `middle` and have the lowest loss."""

    def penalised(point):
        scaled = logits * np.exp(point[0])
        away = (point - middle) / spread
        wrong = expit(scaled + point[1]) - true
        gradient = np.array([(wrong * scaled).sum(), wrong.sum()]) + away / spread
        return _loss(scaled + point[1], true) + (away**2).sum() / 2, gradient

    bounds = [_BOUNDS, (-_MOST_BIAS, _MOST_BIAS)]
    return minimize(penalised, middle, jac=True, method="L-BFGS-B", bounds=bounds).x


def _loss(logits: np.ndarray, true: np.ndarray) -> float:
    """Binary cross-entropy in nats, over all."""
    return float((np.logaddexp(0.0, logits) - true * logits).sum())


_LEAST_PROBABILITY = 1e-30


def can_calibrate(model: Any) -> bool:
    """Whether the answers of a model to a row, or a word, are probabilities that can be calibrated."""
    kind = task_of(model)
    return kind in (CLASSIFY, TAG) or (kind == MATCH and model.target != "graded")


def fit_calibration(
    model: Any, task: Any, part: Subset, labels: Sequence[str], raw: np.ndarray
) -> Calibration | None:
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
        return fit_per_label(raw, task.targets(part, labels))
    if task_of(model) == MATCH and model.target == "binary":
        return fit_per_label(raw, task.targets(part, labels)[:, :1])
    ids, _ = label_ids(part.examples, part.rows, labels)
    known = ids < len(labels)
    return fit_temperature(raw[known], ids[known])


def top_predictions(
    task: Any,
    part: Subset,
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


def before_and_after(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Calibration error and loss of the same rows before and after, from their scores, as JSON values."""
    return {
        name: value
        for score in ("ece", "loss")
        for name, value in ((f"{score}_before", before[score]), (score, after[score]))
    }


def describe_calibration(calibration: Calibration, before: dict[str, Any], after: dict[str, Any]) -> str:
    """One line that tells the temperatures and what they did to the calibration error."""
    lowest, highest = min(calibration.temperatures), max(calibration.temperatures)
    shown = f"temperature {lowest:.3f}" + (f" to {highest:.3f}" if highest > lowest else "")
    errors = [before["ece"], after["ece"]]
    if None in errors:
        return shown
    return f"{shown}, calibration error {errors[0]:.4f} before, {errors[1]:.4f} after"


def tag_ids(task: Any, part: Subset, labels: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """The tag of each word, int32 [N], -1 where the model does not know it, and words of each sentence, int64 [R]."""
    places = {label: place for place, label in enumerate(labels)}
    sentences = [task.learnt(tags) for tags in task.given_tags(part)]
    ids = [places.get(tag, -1) for tags in sentences for tag in tags]
    return np.array(ids, np.int32), np.array([len(tags) for tags in sentences], np.int64)


def _tag_temperature(
    model: Any, scores: np.ndarray, ids: np.ndarray, counts: np.ndarray
) -> Calibration | None:
    """The temperature under which the right tags of words, over all paths, are the most probable."""
    if (ids >= 0).sum() < MIN_ROWS:
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
        for padded, expected in batches:
            found = probabilities(padded, (expected > -2).astype(np.int32), temperature).numpy()
            rows, words = np.nonzero(expected >= 0)
            right = found[rows, words, expected[rows, words]].astype(np.float64)
            total -= np.log(np.maximum(right, _LEAST_PROBABILITY)).sum()
        return float(total)

    return minimize_loss(loss)


def _batches(scores: np.ndarray, ids: np.ndarray, counts: np.ndarray) -> Any:
    """Sentences of similar lengths: scores float32 [B, W, K] and tag ids int32 [B, W], -2 where there is no word."""
    for places, mask in word_batches(counts):
        padded = np.zeros((*mask.shape, scores.shape[1]), np.float32)
        expected = np.full(mask.shape, -2, np.int32)
        padded[mask], expected[mask] = scores[places], ids[places]
        yield padded, expected
