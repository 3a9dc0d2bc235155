"""A trained run judged on rows without its calibration, with it, and with one that fits these rows."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from kmha.bundle.bundle import Bundle
from kmha.bundle.manifest import TAG
from kmha.calibration import Calibration, calibrate
from kmha.inference.tagger import PathDecoder
from training.cli.column_flags import ColumnOverrides
from training.data.inputs import cut_parts
from training.data.types import Subset
from training.evaluation.abstention import Abstention, choose_threshold
from training.evaluation.evaluator import Evaluator, read_labelled_rows
from training.evaluation.model_calibration import fit_calibration, top_predictions
from training.evaluation.reliability import ReliabilityBins, reliability_bins
from training.tasks.protocol import Task

EVALUATED_LENGTHS = 8
SHOWN = ("accuracy", "span_f1", "token_accuracy", "macro_f1", "ece", "loss")
UNCALIBRATED, RUN, FITTED = "uncalibrated", "run", "fitted"
_TITLES = {UNCALIBRATED: "without calibration", RUN: "as the run is", FITTED: "fitted to these rows"}


@dataclasses.dataclass(frozen=True)
class LabelledOutputs:
    """Labelled rows and what a bundle says of them.

    Attributes:
        bundle: A trained bundle; its model is changed on the way and is the same again afterwards but for rounding.
        task: Reads and scores the rows.
        part: The rows.
        raw: Logits float32 [R, C], or of a tagger the scores of all words float32 [N, K].
        counts: Of a tagger the words of each sentence, int64 [R].
    """

    bundle: Bundle
    task: Task
    part: Subset
    raw: np.ndarray
    counts: np.ndarray | None

    @classmethod
    def read(cls, bundle: Bundle, path: Path, given: ColumnOverrides, folder: Path) -> "LabelledOutputs":
        """Asks a bundle about the rows of a file.

        Args:
            bundle: A trained bundle.
            path: Labelled rows.
            given: Names of columns that are others than in training.
            folder: Where the rows are kept meanwhile.

        Raises:
            InputError: The file or a row of it cannot be used, or it has none.
        """
        task, part = read_labelled_rows(bundle, path, given, folder)
        inputs = cut_parts(bundle.preprocessor, {"judged": part}, folder, windows=task.windows)
        read = inputs.evaluated("judged", task.targets(part, bundle.labels))
        evaluator = Evaluator(bundle.model, task, bundle.labels, read.buckets([], EVALUATED_LENGTHS))
        words: Any = read
        return cls(
            bundle, task, part, evaluator.raw_outputs(read), words.word_counts if bundle.task == TAG else None
        )

    def answers(self, raw: np.ndarray) -> Any:
        """What the model as it is now makes of logits or scores: probabilities, or `Tagged`."""
        if self.counts is not None:
            return PathDecoder(self.bundle.model)(raw, self.counts)
        return np.asarray(self.bundle.model.probabilities(raw))

    def evaluated(self, raw: np.ndarray, thresholds: list[float] | None) -> tuple[Any, dict[str, Any]]:
        """The answers and their scores."""
        answers = self.answers(raw)
        decision = {} if thresholds is None else {"thresholds": thresholds}
        return answers, self.task.scores(self.part, self.bundle.labels, answers, decision)

    def sure_and_right(self, answers: Any) -> tuple[np.ndarray, np.ndarray]:
        """The probabilities that the calibration error is of, float [N], and whether each came true, bool [N]."""
        labels = self.bundle.labels
        if self.counts is not None:
            expected = self.task.targets(self.part, labels)
            return answers.probabilities[
                np.arange(len(expected)), answers.tag_ids
            ], answers.tag_ids == expected
        if self.bundle.uses_thresholds:
            targets = self.task.targets(self.part, labels)
            true = targets if self.bundle.multi_label else targets[:, :1]
            return answers.ravel(), true.ravel() > 0
        return top_predictions(self.task, self.part, labels, answers, None)


@dataclasses.dataclass(frozen=True)
class Recalibration:
    """What was found.

    Attributes:
        total: The calibration of the run as it is to be, counted from the uncalibrated model.
        change: The one to put on the run as it is; None: none.
        scores: Of the model in each state, by name.
        diagrams: Of the uncalibrated model and of the last state.
        wanted: The precision asked for; None: none.
        abstention: None where none was asked for, or no threshold is enough.
    """

    total: Calibration
    change: Calibration | None
    scores: dict[str, dict[str, Any]]
    diagrams: list[ReliabilityBins]
    expected: float | None
    abstention: Abstention | None

    def values(self) -> dict[str, Any]:
        """As JSON values."""
        last = list(self.scores.values())[-1]
        shown: dict[str, Any] = {"rows": last["rows"]} if "rows" in last else {}
        shown |= self.total.values()
        for name, scores in self.scores.items():
            shown[name] = {key: scores.get(key) for key in SHOWN}
            shown[name] = {key: value for key, value in shown[name].items() if value is not None}
        if self.expected is not None:
            found = {"abstain_below": None} if self.abstention is None else self.abstention.values()
            shown["abstention"] = {"wanted_precision": self.expected, **found}
        return shown

    def put(self, bundle: Bundle, name: str) -> Iterator[str]:
        """Changes a bundle; gives a line for each thing that somebody should know.

        Args:
            bundle: The one that was judged, loaded anew.
            name: Of the rows.
        """
        if self.change is not None:
            calibrate(bundle.model, self.change)
            if bundle.thresholds is not None:
                bundle.thresholds = self.change.thresholds(bundle.thresholds)
            bundle.details["calibration"] = {**self.total.values(), "rows": name}
            if bundle.abstain_below is not None and self.expected is None:
                bundle.abstain_below = None
                yield "abstain_below went, it was chosen for another temperature; choose one with --precision"
        if self.expected is not None:
            bundle.abstain_below = None if self.abstention is None else self.abstention.abstain_below
            if self.abstention is None:
                yield f"no probability is high enough for {self.expected:g} right answers: the run never abstains"


def recalibrate(rows: LabelledOutputs, refit: bool, precision: float | None) -> Recalibration:
    """Judges a run on rows, in up to three states.

    Args:
        rows: What it says of them.
        refit: Whether to fit a calibration to them.
        precision: Share of answers to be right, for which to find the probability to abstain below.
    """
    bundle, now = rows.bundle, Calibration.of(rows.bundle.details)
    change = fit_calibration(bundle.model, rows.task, rows.part, bundle.labels, rows.raw) if refit else None
    states = {UNCALIBRATED: now.inverse(), RUN: Calibration()}
    if change is not None:
        states[FITTED] = change
    scores, diagrams, sure_and_right = {}, [], None
    for name, state in states.items():
        thresholds = None if bundle.thresholds is None else state.thresholds(bundle.thresholds)
        calibrate(bundle.model, state)
        answers, scores[name] = rows.evaluated(state.apply(rows.raw).astype(np.float32), thresholds)
        calibrate(bundle.model, state.inverse())
        diagrams.append(reliability_bins(_TITLES[name], *rows.sure_and_right(answers), scores[name]["ece"]))
        if precision is not None:
            sure_and_right = top_predictions(rows.task, rows.part, bundle.labels, answers, thresholds)
    abstention = None
    if precision is not None and sure_and_right is not None:
        abstention = choose_threshold(*sure_and_right, precision)
    total = now if change is None else change.compose(now)
    return Recalibration(total, change, scores, [diagrams[0], diagrams[-1]], precision, abstention)
