"""The last step of a training: probabilities that mean what they say."""

import dataclasses
import logging
from typing import Any

from kmha.calibration import Calibration, calibrate
from training.data.inputs import Inputs, Source
from training.data.load import Data
from training.evaluation.evaluator import Evaluator
from training.evaluation.model_calibration import before_and_after, can_calibrate, fit_calibration

logger = logging.getLogger("kmha")


@dataclasses.dataclass(frozen=True)
class BeforeCalibration:
    """What a model that has been calibrated was before.

    Attributes:
        calibration: What has become of its logits.
        decision: Found on validation rows before, for the probabilities as they are now.
        scores: Of validation rows and, where there are any, test rows before.
    """

    calibration: Calibration
    decision: dict[str, Any]
    scores: dict[str, dict[str, Any]]

    def told(self, after: dict[str, Any]) -> dict[str, Any]:
        """What metrics.json says of it, beside the scores of the same rows now."""
        parts = {name: before_and_after(scores, after[name]) for name, scores in self.scores.items()}
        return self.calibration.values() | parts


def calibrate_on_validation(
    data: Data, inputs: Inputs, evaluator: Evaluator, validation: Source
) -> BeforeCalibration | None:
    """Calibrates a trained model on validation rows, in which it decides as before.

    Args:
        data: The rows.
        inputs: The rows as the model reads them.
        evaluator: Has the model, in float32, which is changed.
        validation: The validation rows.

    Returns:
        None where the model stays as it is.
    """
    task, labels = data.task, data.labels
    if not can_calibrate(evaluator.model):
        return None
    raw, answers = evaluator.raw_and_predictions(validation)
    found = fit_calibration(evaluator.model, task, data.validation, labels, raw)
    if found is None:
        logger.info("not calibrated: too few validation rows, or no temperature makes them more probable")
        return None
    decision = task.decision(data.validation, labels, answers)
    scores = {"validation": task.scores(data.validation, labels, answers, decision)}
    if data.test is not None:
        answers = evaluator.predict(inputs.evaluated("test", task.targets(data.test, labels)))
        scores["test"] = task.scores(data.test, labels, answers, decision)
    calibrate(evaluator.model, found)
    if "thresholds" in decision:
        decision = {**decision, "thresholds": found.thresholds(decision["thresholds"])}
    return BeforeCalibration(found, decision, scores)
