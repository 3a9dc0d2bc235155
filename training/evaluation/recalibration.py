"""Evaluates a run on labelled rows without calibration, with its own, and with one fitted to these rows."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from kmha.bundle.bundle import Bundle
from kmha.bundle.manifest import TAG
from kmha.calibration import Calibration, calibrate
from kmha.inference.tagger import PathDecoder
from training.data.inputs import cut_parts
from training.evaluation.evaluator import Evaluator, read_labelled_rows, top_predictions
from training.evaluation.model_calibration import fit_calibration
from training.io.examples import ColumnOverrides, Subset
from training.metrics.classification import ReliabilityBins, reliability_bins
from training.metrics.thresholds import Abstention, choose_threshold
from training.tasks.protocol import Task

SHOWN = ("accuracy", "span_f1", "token_accuracy", "macro_f1", "ece", "loss")
UNCALIBRATED, RUN, FITTED = "uncalibrated", "run", "fitted"
_TITLES = {UNCALIBRATED: "without calibration", RUN: "current calibration", FITTED: "fitted to these rows"}


@dataclasses.dataclass(frozen=True)
class LabelledOutputs:
    """Labelled rows and the raw outputs of a bundle's model."""

    bundle: Bundle  # `recalibrate` changes its model and restores it, up to rounding
    task: Task
    part: Subset
    raw: np.ndarray  # logits float32 [R, C], or a tagger's scores of all words float32 [N, K]
    counts: np.ndarray | None  # for a tagger the number of words of each sentence, int64 [R]

    @classmethod
    def read(cls, bundle: Bundle, path: Path, overrides: ColumnOverrides, folder: Path) -> "LabelledOutputs":
        """The outputs of a bundle's model for a file; InputError if it or a row cannot be used, or without rows."""
        task, part = read_labelled_rows(bundle, path, overrides, folder)
        inputs = cut_parts(bundle.preprocessor, {"rows": part}, folder, windows=task.windows)
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


def recalibrate(rows: LabelledOutputs, refit: bool, precision: float | None) -> Recalibration:
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
