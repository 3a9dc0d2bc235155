"""Calibrates the probabilities of a model on labeled rows by temperature scaling: after training, or of a run."""

import dataclasses
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from scipy.optimize import minimize, minimize_scalar
from scipy.special import expit, logsumexp

from kmha.bundle.bundle import Bundle, task_of
from kmha.bundle.manifest import CLASSIFY, MATCH, TAG
from kmha.calibration import Calibration, calibrate
from kmha.inference.tagger import PathDecoder, word_batches
from kmha.layers.crf import marginals
from training.data.inputs import Inputs, Source, tokenize_parts
from training.data.load import Data
from training.evaluation.evaluator import Evaluator, read_labeled_rows, top_predictions
from training.io.examples import ColumnOverrides, Subset, label_ids
from training.losses.distillation import softened
from training.metrics.classification import ReliabilityBins, reliability_bins
from training.metrics.thresholds import Abstention, choose_threshold
from training.tasks.protocol import Task

logger = logging.getLogger("kmha")

MIN_ROWS = 100
# Few labels have no other rows, and the prior of the temperature keeps it near 1.
MIN_CROSS_VALIDATED_ROWS = 10
MIN_TEMPERATURE, MAX_TEMPERATURE = 0.05, 20.0
_MAX_BIAS = 10.0
# Standard deviation of the prior of a label's log temperature and bias around those of all labels together.
LABEL_SPREAD = 0.5
_BOUNDS = (-np.log(MAX_TEMPERATURE), -np.log(MIN_TEMPERATURE))
_MIN_PROBABILITY = 1e-30
SHOWN = ("accuracy", "span_f1", "token_accuracy", "macro_f1", "ece", "loss")
# Logits that are converted to float64 at once.
_VALUES_AT_ONCE = 2_000_000
UNCALIBRATED, RUN, FITTED = "uncalibrated", "run", "fitted"
_TITLES = {UNCALIBRATED: "without calibration", RUN: "current calibration", FITTED: "fitted to these rows"}


@dataclasses.dataclass(frozen=True)
class BeforeCalibration:
    """The state of a model before its calibration."""

    calibration: Calibration  # that was applied
    decision: dict[str, Any]  # on validation rows before, converted to the new probabilities
    scores: dict[str, dict[str, Any]]  # of the validation rows and, if there are any, the test rows before
    # Of the test rows after, float32 [R, C]; None without such rows or of a tagger.
    test_logits: np.ndarray | None

    def compare(self, after: dict[str, Any]) -> dict[str, Any]:
        """The values for metrics.json, with the scores of the same rows after the calibration."""
        values: dict[str, Any] = {**self.calibration.values()}
        for name, before in self.scores.items():
            values[name] = {}
            for score in ("ece", "loss"):
                values[name] |= {f"{score}_before": before[score], score: after[name][score]}
        return values


def calibrate_on_validation(
    data: Data, inputs: Inputs, evaluator: Evaluator, validation: Source
) -> BeforeCalibration | None:
    """Calibrates a trained model on the validation rows; None if it was not changed. Its decisions stay the same."""
    task, labels = data.task, data.labels
    if not can_calibrate(evaluator.model):
        return None
    raw, predictions = evaluator.raw_and_predictions(validation)
    part, fitted, least, held_out = data.validation, raw, MIN_ROWS, evaluator.out_of_fold
    is_small = data.is_cross_validated or len(part.rows) < MIN_ROWS
    if held_out is not None and held_out.is_cross_validated and is_small:
        known, least = held_out.predictable, MIN_CROSS_VALIDATED_ROWS
        part = dataclasses.replace(data.train, rows=data.train.rows[known])
        fitted = evaluator.raw_outputs(held_out.source)[known]
    found = fit_calibration(evaluator.model, task, part, labels, fitted, least)
    if found is None:
        reason = "too few validation rows, or no temperature improves the validation loss"
        logger.info(f"calibration skipped: {reason}")
        return None
    decision = task.tune_thresholds(data.validation, labels, predictions)
    scores = {"validation": task.scores(data.validation, labels, predictions, decision)}
    test_logits = None
    if data.test is not None:
        source = inputs.evaluated("test", task.targets(data.test, labels))
        if task_of(evaluator.model) == TAG:
            predictions = evaluator.predict(source)
        else:
            # Calibrated logits follow from these: the test rows are predicted once.
            test_logits = evaluator.raw_outputs(source)
            predictions = evaluator.with_outputs(source, test_logits).predict(source)
            test_logits = found.apply(test_logits).astype(np.float32)
        scores["test"] = task.scores(data.test, labels, predictions, decision)
    calibrate(evaluator.model, found)
    if held_out is not None:
        held_out.logits = found.apply(held_out.logits).astype(np.float32)
    if "thresholds" in decision:
        decision = {**decision, "thresholds": found.thresholds(decision["thresholds"])}
    return BeforeCalibration(found, decision, scores, test_logits)


def can_calibrate(model: Any) -> bool:
    """Whether the outputs of a model for a row or a word are probabilities of labels."""
    kind = task_of(model)
    return kind in (CLASSIFY, TAG) or (kind == MATCH and model.target != "graded")


def fit_calibration(
    model: Any, task: Any, part: Subset, labels: Sequence[str], raw: np.ndarray, least: int = MIN_ROWS
) -> Calibration | None:
    """The calibration with the lowest loss on labeled rows that the model was not trained on.

    Rows with unknown labels are ignored. The raw outputs of the model are logits of the rows float32 [R, C], or scores
    of all words float32 [N, K]. The result is None if there are fewer than `least` rows, or no calibration lowers the
    loss.
    """
    if task_of(model) == TAG:
        return _tag_temperature(model, raw, *tag_ids(task, part, labels))
    if task_of(model) == CLASSIFY and model.multi_label:
        return fit_per_label(raw, task.targets(part, labels), least)
    if task_of(model) == MATCH and model.target == "binary":
        return fit_per_label(raw, task.targets(part, labels)[:, :1], least)
    ids, _ = label_ids(part.examples, part.rows, labels)
    known = ids < len(labels)
    return fit_temperature(raw[known], ids[known], least)


def describe_calibration(calibration: Calibration, before: dict[str, Any], after: dict[str, Any]) -> str:
    """One line with the temperatures and the calibration error before and after."""
    lowest, highest = min(calibration.temperatures), max(calibration.temperatures)
    shown = f"temperature {lowest:.3f}" + (f" to {highest:.3f}" if highest > lowest else "")
    errors = [before["ece"], after["ece"]]
    if None in errors:
        return shown
    return f"{shown}, calibration error {errors[0]:.4f} before, {errors[1]:.4f} after"


def tag_ids(task: Any, part: Subset, labels: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """The tag id of each word, int32 [N], -1 for unknown tags, and the number of words of each sentence, int64 [R]."""
    places = {label: place for place, label in enumerate(labels)}
    sentences = [task.to_model_scheme(tags) for tags in task.row_tags(part)]
    ids = [places.get(tag, -1) for tags in sentences for tag in tags]
    return np.array(ids, np.int32), np.array([len(tags) for tags in sentences], np.int64)


def fit_temperature(logits: np.ndarray, true_ids: np.ndarray, least: int = MIN_ROWS) -> Calibration | None:
    """The temperature for exclusive labels, ids int [R], and logits float [R, C]; None as in `fit_calibration`."""
    if len(logits) < least:
        return None
    picked = logits[np.arange(len(logits)), true_ids].astype(np.float64)
    blocks = np.array_split(logits, -(-logits.size // _VALUES_AT_ONCE))

    def loss(scale: float) -> float:
        sums = [logsumexp(np.asarray(block, np.float64) * scale, axis=1) for block in blocks]
        return float((np.concatenate(sums) - picked * scale).sum())

    return minimize_loss(loss)


def minimize_loss(loss) -> Calibration | None:
    """The temperature T that minimizes a function of 1 / T, the summed cross-entropy; None if T = 1 is as good."""
    found = minimize_scalar(
        lambda log_scale: loss(np.exp(log_scale)) + log_scale**2 / 2,
        bounds=_BOUNDS,
        method="bounded",
        options={"xatol": 1e-4},
    )
    scale = float(np.exp(found.x))  # pyright: ignore  (scipy's result has it)
    return Calibration((1.0 / scale,)) if loss(scale) < loss(1.0) else None


def fit_per_label(logits: np.ndarray, true: np.ndarray, least: int = MIN_ROWS) -> Calibration | None:
    """A temperature and a bias for each label, 0 or 1, [R, C], not exclusive; None as in `fit_calibration`."""
    logits, true = np.asarray(logits, np.float64), np.asarray(true) != 0
    if len(logits) < least:
        return None
    shared = _fit_binary(logits.ravel(), true.ravel(), np.zeros(2), 1.0)
    own = [shared]
    if logits.shape[1] > 1:
        own = [_fit_binary(*column, shared, LABEL_SPREAD) for column in zip(logits.T, true.T, strict=True)]
    rates, biases = np.array(own).T
    found = Calibration(tuple(np.exp(-rates).tolist()), tuple(biases.tolist()))
    return found if _loss(found.apply(logits), true) < _loss(logits, true) else None


def _fit_binary(logits: np.ndarray, true: np.ndarray, middle: np.ndarray, spread: float) -> np.ndarray:
    """The logarithm of 1 / temperature and the bias with the lowest loss, with a Gaussian prior around `middle`."""

    def penalized_loss(point):
        scaled = logits * np.exp(point[0])
        away = (point - middle) / spread
        wrong = expit(scaled + point[1]) - true
        gradient = np.array([(wrong * scaled).sum(), wrong.sum()]) + away / spread
        return _loss(scaled + point[1], true) + (away**2).sum() / 2, gradient

    bounds = [_BOUNDS, (-_MAX_BIAS, _MAX_BIAS)]
    return minimize(penalized_loss, middle, jac=True, method="L-BFGS-B", bounds=bounds).x


def _loss(logits: np.ndarray, true: np.ndarray) -> float:
    """Sum of the binary cross-entropy."""
    return float((np.logaddexp(0.0, logits) - true * logits).sum())


def _tag_temperature(
    model: Any, scores: np.ndarray, ids: np.ndarray, counts: np.ndarray
) -> Calibration | None:
    """The temperature that maximizes the marginal probabilities of the true tags."""
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

    # Sentences of similar lengths: scores float32 [B, W, K] and tag ids int32 [B, W], -2 for padding.
    batches = []
    for places, mask in word_batches(counts):
        padded = np.zeros((*mask.shape, scores.shape[1]), np.float32)
        expected = np.full(mask.shape, -2, np.int32)
        padded[mask], expected[mask] = scores[places], ids[places]
        batches.append((padded, expected))

    def loss(scale: float) -> float:
        total, temperature = 0.0, np.float32(1.0 / scale)
        for padded, expected in batches:
            found = probabilities(padded, (expected > -2).astype(np.int32), temperature).numpy()
            rows, words = np.nonzero(expected >= 0)
            right = found[rows, words, expected[rows, words]].astype(np.float64)
            total -= np.log(np.maximum(right, _MIN_PROBABILITY)).sum()
        return float(total)

    return minimize_loss(loss)


@dataclasses.dataclass(frozen=True)
class LabeledOutputs:
    """Labeled rows and the raw outputs of a bundle's model."""

    bundle: Bundle  # `recalibrate` changes its model and restores it, up to rounding
    task: Task
    part: Subset
    raw: np.ndarray  # logits float32 [R, C], or a tagger's scores of all words float32 [N, K]
    counts: np.ndarray | None  # for a tagger the number of words of each sentence, int64 [R]

    @classmethod
    def read(cls, bundle: Bundle, path: Path, overrides: ColumnOverrides, folder: Path) -> "LabeledOutputs":
        """The outputs of a bundle's model for a file; InputError if it or a row cannot be used, or without rows."""
        task, part = read_labeled_rows(bundle, path, overrides, folder)
        inputs = tokenize_parts(bundle.preprocessor, {"rows": part}, folder, windows=task.windows)
        source: Any = inputs.evaluated("rows", task.targets(part, bundle.labels))
        raw = Evaluator.for_bundle(bundle, task, source).raw_outputs(source)
        return cls(bundle, task, part, raw, source.word_counts if bundle.task == TAG else None)

    def predict(self, raw: np.ndarray) -> Any:
        """The model's current predictions for raw outputs: probabilities, or those of a tagger."""
        if self.counts is not None:
            return PathDecoder(self.bundle.model)(raw, self.counts)
        return np.asarray(self.bundle.model.probabilities(raw))

    def confidence_and_correct(self, predictions: Any) -> tuple[np.ndarray, np.ndarray]:
        """The probabilities of the calibration error, float [N], and whether each prediction is correct, bool [N]."""
        labels = self.bundle.labels
        if self.counts is not None:
            expected, ids = self.task.targets(self.part, labels), predictions.tag_ids
            return predictions.probabilities[np.arange(len(expected)), ids], ids == expected
        if self.bundle.uses_thresholds:
            targets = self.task.targets(self.part, labels)
            true = targets if self.bundle.multi_label else targets[:, :1]
            return predictions.ravel(), true.ravel() > 0
        return top_predictions(self.task, self.part, labels, predictions, None)


@dataclasses.dataclass(frozen=True)
class Recalibration:
    """The result of `recalibrate`."""

    total: Calibration  # the new calibration of the run, relative to the uncalibrated model
    change: Calibration | None  # the calibration to apply to the current model; None: no change
    scores: dict[str, dict[str, Any]]  # of the model in each state
    diagrams: list[ReliabilityBins]  # of the uncalibrated model and of the last state
    target_precision: float | None
    abstention: Abstention | None  # None if no precision was requested, or no threshold reaches it

    def values(self) -> dict[str, Any]:
        """As JSON values."""
        last = list(self.scores.values())[-1]
        shown: dict[str, Any] = {"rows": last["rows"]} if "rows" in last else {}
        shown |= self.total.values()
        for name, scores in self.scores.items():
            shown[name] = {key: scores[key] for key in SHOWN if scores.get(key) is not None}
        if self.target_precision is not None:
            found = {"abstain_below": None} if self.abstention is None else self.abstention.values()
            shown["abstention"] = {"wanted_precision": self.target_precision, **found}
        return shown

    def apply(self, bundle: Bundle, name: str) -> Iterator[str]:
        """Applies the result, from rows of this name, to the bundle, newly loaded; yields notes for the user."""
        if self.change is not None:
            calibrate(bundle.model, self.change)
            if bundle.thresholds is not None:
                bundle.thresholds = self.change.thresholds(bundle.thresholds)
            bundle.details["calibration"] = {**self.total.values(), "rows": name}
            if bundle.abstain_below is not None and self.target_precision is None:
                bundle.abstain_below = None
                yield "abstain_below removed: it was chosen for another temperature; use --precision to choose one"
        if self.target_precision is not None:
            bundle.abstain_below = None if self.abstention is None else self.abstention.abstain_below
            if self.abstention is None:
                yield f"no threshold reaches a precision of {self.target_precision:g}: the run never abstains"


def recalibrate(rows: LabeledOutputs, refit: bool, precision: float | None) -> Recalibration:
    """Evaluates a run on rows in up to three states, and fits a calibration and an abstention threshold."""
    bundle, current = rows.bundle, Calibration.of(rows.bundle.details)
    change = fit_calibration(bundle.model, rows.task, rows.part, bundle.labels, rows.raw) if refit else None
    states = {UNCALIBRATED: current.inverse(), RUN: Calibration()}
    if change is not None:
        states[FITTED] = change
    scores, diagrams, abstention = {}, [], None
    for name, state in states.items():
        thresholds = None if bundle.thresholds is None else state.thresholds(bundle.thresholds)
        decision = {} if thresholds is None else {"thresholds": thresholds}
        calibrate(bundle.model, state)
        predictions = rows.predict(state.apply(rows.raw).astype(np.float32))
        scores[name] = rows.task.scores(rows.part, bundle.labels, predictions, decision)
        calibrate(bundle.model, state.inverse())
        confidence, correct = rows.confidence_and_correct(predictions)
        diagrams.append(reliability_bins(_TITLES[name], confidence, correct, scores[name]["ece"]))
        if precision is not None:
            # The threshold of the last state counts.
            top = top_predictions(rows.task, rows.part, bundle.labels, predictions, thresholds)
            abstention = choose_threshold(*top, precision)
    total = current if change is None else change.compose(current)
    return Recalibration(total, change, scores, [diagrams[0], diagrams[-1]], precision, abstention)
