"""The part of a job that needs TensorFlow: inputs, model, epochs, judgement, bundle."""

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np

from kmha.bundle import Bundle
from training import baseline
from training.calibrated import BeforeCalibration, calibrated
from training.cli import say
from training.config import FitConfig
from training.cost import Cost, trained_size
from training.data import Data
from training.distill import TaughtTask, with_teacher
from training.encoder_shape import checkpoint_of
from training.inputs import Inputs, Source
from training.judge import Judge
from training.kept import length_percentiles, sample_texts
from training.large.inputs import cut_for_training
from training.large.limits import Large
from training.model_calibration import described
from training.outcomes import Dismissed
from training.precision import POLICIES, in_float32
from training.preprocessors import make_preprocessor
from training.reporting.material import Asked
from training.start import Start
from training.trainer import train
from training.workers.crew import ALONE, Crew


@dataclasses.dataclass(frozen=True)
class Learnt:
    """What a training leaves: the bundle to save and the scores to report.

    Attributes:
        bundle: The trained model.
        metrics: For metrics.json.
        asked: The rows that it has not trained on, with its answers; those that are judged last.
        lengths: Tokens of each text, integers, by part.
    """

    bundle: Bundle
    metrics: dict[str, Any]
    asked: list[Asked]
    lengths: dict[str, np.ndarray]


def learn(
    config: FitConfig,
    data: Data,
    scratch: Path,
    folder: Path,
    cost: Cost,
    start: Start | None = None,
    crew: Crew = ALONE,
) -> Learnt:
    """Trains a model on checked data and judges it.

    Args:
        config: All settings.
        data: The parts of the data.
        scratch: Where token ids are kept meanwhile.
        folder: The unfinished run, for its checkpoint and logs.
        cost: Of the run so far; goes on.
        start: The model to go on with, whose labels those of the data are; None begins with a new one.
        crew: The workers that train together.

    Raises:
        InputError: A vocabulary, vector or checkpoint file cannot be used.
        Stopped: Told to stop; a checkpoint is kept.
        Diverged: The loss left the numbers.
        Dismissed: The model is trained, and another worker judges it.
    """
    keras.utils.set_random_seed(config.train.seed)
    checkpoint = checkpoint_of(config)
    vocabulary = checkpoint.vocabulary if checkpoint else None
    with cost.of("tokens"):
        large = Large(config.data.large_rows, config.train.seed)
        if start is not None:
            preprocessor = start.preprocessor
        else:
            preprocessor = make_preprocessor(config.text, data.parts, data.task, vocabulary, large, crew)
        # A teacher answers all rows before any is trained on.
        by_parts = None if config.distill.teacher else large
        inputs = cut_for_training(
            preprocessor, data.parts, scratch, data.task.masking, by_parts, data.task.windows
        )
    for name, counts in inputs.counts.items():
        say(counts.describe(name))
    with cost.of("teacher") if config.distill.teacher else contextlib.nullcontext():
        data, inputs = with_teacher(config, data, inputs, scratch)
    with cost.of("training"), _dtype_policy(POLICIES[config.precision]), contextlib.closing(inputs):
        validation = inputs.judged("validation", data.task.targets(data.validation, data.labels))
        model, judge, progress = train(config, data, inputs, validation, folder, start, crew)
    if not crew.is_chief:
        raise Dismissed
    with cost.of("judging"), _dtype_policy(POLICIES["float32"]):
        model = in_float32(model)
        judge = dataclasses.replace(judge, model=model)
        before = calibrated(data, inputs, judge, validation) if config.calibrate else None
        decision, metrics, asked = _judged(data, inputs, judge, validation, before)
    if config.baseline:
        with cost.of("baseline"):
            metrics["baseline"] = _baseline(config, data, inputs, metrics[data.judged_name])
    if isinstance(data.task, TaughtTask):
        metrics["teacher"] = data.task.judged_beside(
            metrics[data.judged_name], data.judged, data.labels, scratch
        )
    lengths = {name: inputs.text_lengths(name) for name in dict.fromkeys(("train", data.judged_name))}
    metrics |= {
        "best_epoch": progress.best_epoch,
        "history": progress.history,
        **({"parts_of_epoch": inputs.per_epoch} if inputs.per_epoch > 1 else {}),
        "data": dataclasses.asdict(data.summary),
        "tokens": {name: dataclasses.asdict(counts) for name, counts in inputs.counts.items()},
        "cost": cost.values(trained_size(model)),
    }
    details = {
        "columns": data.columns.named,
        "data": data.origins,
        "lengths": length_percentiles(lengths["train"]),
        **({"pretrained": config.encoder.pretrained} if checkpoint else {}),
        **({"calibration": before.calibration.values()} if before else {}),
        **data.task.kept,
        **(start.details if start else {}),
    }
    sample = sample_texts(data.train, config.train.seed)
    bundle = Bundle(model, inputs.preprocessor, data.labels, decision.get("thresholds"), details, sample)
    return Learnt(bundle, metrics, asked, lengths)


@contextlib.contextmanager
def _dtype_policy(name: str) -> Iterator[None]:
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def _judged(
    data: Data, inputs: Inputs, judge: Judge, validation: Source, before: BeforeCalibration | None
) -> tuple[dict[str, Any], dict[str, Any], list[Asked]]:
    """The decision found on validation rows, the scores, and the answers to the rows that were not trained on."""
    task, labels, name = data.task, data.labels, data.judged_name
    answers = judge.answers(validation)
    decision = before.decision if before else task.decision(data.validation, labels, answers)
    asked = [Asked("validation", data.validation, answers)]
    metrics: dict[str, Any] = {
        "judged_on": name,
        "validation": task.scores(data.validation, labels, answers, decision),
    }
    if data.test is not None:
        answers = judge.answers(inputs.judged("test", task.targets(data.test, labels)))
        asked.append(Asked("test", data.test, answers))
    metrics[name] = scores = task.scores(data.judged, labels, answers, decision, intervals=True)
    if before:
        metrics["calibration"] = before.told(metrics)
        say(f"{name}: {described(before.calibration, before.scores[name], scores)}")
    value = scores[task.metric]
    say(f"{name}: {task.metric} {'is undefined for these rows' if value is None else f'{value:.4f}'}")
    return decision, metrics, asked


def _baseline(config: FitConfig, data: Data, inputs: Inputs, scores: dict[str, Any]) -> dict[str, Any]:
    """What the baseline is and scores on the judged rows; says how that compares with the model's scores."""
    task = data.task
    train, validation, judged = (inputs.part(name) for name in ("train", "validation", data.judged_name))
    description, result = task.baseline(train, validation, judged, data.labels, config.train.seed)
    say(f"{task.baseline_name}: {description}")
    say(baseline.compare(scores, result, task.metric, task.baseline_name))
    return {"description": description, **result}
