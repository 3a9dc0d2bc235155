"""The part of a job that needs TensorFlow: inputs, model, epochs, judgement, bundle."""

import contextlib
import dataclasses
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np

from kmha.bundle.bundle import Bundle
from training.baselines import text_linear as baseline
from training.cli.exceptions import NotChief
from training.config.config import ResolvedConfig
from training.data.inputs import Inputs, Source
from training.data.large_data import Large
from training.data.load import Data
from training.data.streamed import cut_for_training
from training.data.tokenizer_training import make_preprocessor
from training.data.types import Subset
from training.distillation.task import DistillationTask, add_teacher_predictions
from training.distributed.coordinator import SINGLE_WORKER, Coordinator
from training.engine.model_init import StartingModel
from training.engine.trainer import train
from training.evaluation.evaluator import Evaluator
from training.evaluation.model_calibration import describe_calibration
from training.evaluation.post_training import BeforeCalibration, calibrate_on_validation
from training.reporting.report_data import ScoredSplit
from training.runtime.mixed_precision import POLICIES, to_float32
from training.runtime.resource_usage import Cost, count_trainable_weights

logger = logging.getLogger("kmha")

# Enough to calibrate an 8-bit export on; at the longest default text about 300 kB.
SAMPLE_ROWS = 256
SAMPLE_CHARACTERS = 2_000
PERCENTILES = (50, 90, 99, 100)


def sample_texts(part: Subset, seed: int) -> list[Any]:
    """Texts of random rows of a part, or pairs of them, each row at most once.

    Args:
        part: The training rows.
        seed: The same seed draws the same rows.

    Returns:
        Of up to 256 rows the text, or a tuple of both; cut to 2,000 characters.
    """
    rng = np.random.default_rng([seed, 7])
    rows = np.sort(rng.choice(part.rows, min(SAMPLE_ROWS, len(part.rows)), replace=False))
    fields = range(len(part.examples.texts))
    columns = [
        [text[:SAMPLE_CHARACTERS] for text in part.examples.read_texts(rows, field)] for field in fields
    ]
    return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))


def length_percentiles(lengths: np.ndarray) -> dict[str, int]:
    """How long texts are in tokens: {"p50", "p90", "p99", "p100"}, each the length of a real one.

    Args:
        lengths: Tokens of each text, integers [R], special ones included.
    """
    values = np.percentile(lengths, PERCENTILES, method="higher")
    return {f"p{percent}": int(value) for percent, value in zip(PERCENTILES, values, strict=True)}


@dataclasses.dataclass(frozen=True)
class FitResult:
    """What a training leaves: the bundle to save and the scores to report.

    Attributes:
        bundle: The trained model.
        metrics: For metrics.json.
        asked: The rows that it has not trained on, with its answers; those that are judged last.
        lengths: Tokens of each text, integers, by part.
    """

    bundle: Bundle
    metrics: dict[str, Any]
    asked: list[ScoredSplit]
    lengths: dict[str, np.ndarray]


def train_and_evaluate(
    config: ResolvedConfig,
    data: Data,
    scratch: Path,
    folder: Path,
    cost: Cost,
    start: StartingModel | None = None,
    coordinator: Coordinator = SINGLE_WORKER,
) -> FitResult:
    """Trains a model on checked data and judges it.

    Args:
        config: All settings.
        data: The parts of the data.
        scratch: Where token ids are kept meanwhile.
        folder: The unfinished run, for its checkpoint and logs.
        cost: Of the run so far; goes on.
        start: The model to go on with, whose labels those of the data are; None begins with a new one.
        coordinator: The workers that train together.

    Raises:
        InputError: A vocabulary, vector or checkpoint file cannot be used.
        Interrupted: Told to stop; a checkpoint is kept.
        TrainingDiverged: The loss left the numbers.
        NotChief: The model is trained, and another worker judges it.
    """
    keras.utils.set_random_seed(config.train.seed)
    checkpoint = config.checkpoint
    vocabulary = checkpoint.vocabulary if checkpoint else None
    with cost.measure("tokens"):
        large = Large(config.data.large_rows, config.train.seed)
        if start is not None:
            preprocessor = start.preprocessor
        else:
            preprocessor = make_preprocessor(
                config.text, data.parts, data.task, vocabulary, large, coordinator
            )
        # A teacher answers all rows before any is trained on.
        by_parts = None if config.distill.teacher else large
        inputs = cut_for_training(
            preprocessor, data.parts, scratch, data.task.masking, by_parts, data.task.windows
        )
    for name, counts in inputs.counts.items():
        logger.info(counts.describe(name))
    with cost.measure("teacher") if config.distill.teacher else contextlib.nullcontext():
        data, inputs = add_teacher_predictions(config, data, inputs, scratch)
    with cost.measure("training"), _dtype_policy(POLICIES[config.precision]), contextlib.closing(inputs):
        validation = inputs.evaluated("validation", data.task.targets(data.validation, data.labels))
        model, evaluator, progress = train(config, data, inputs, validation, folder, start, coordinator)
    if not coordinator.is_chief:
        raise NotChief
    with cost.measure("judging"), _dtype_policy(POLICIES["float32"]):
        model = to_float32(model)
        evaluator = dataclasses.replace(evaluator, model=model)
        before = calibrate_on_validation(data, inputs, evaluator, validation) if config.calibrate else None
        decision, metrics, asked = _evaluate(data, inputs, evaluator, validation, before)
    if config.baseline:
        with cost.measure("baseline"):
            metrics["baseline"] = _baseline(config, data, inputs, metrics[data.evaluated_name])
    if isinstance(data.task, DistillationTask):
        metrics["teacher"] = data.task.compare_with_teacher(
            metrics[data.evaluated_name], data.evaluated, data.labels, scratch
        )
    lengths = {name: inputs.text_lengths(name) for name in dict.fromkeys(("train", data.evaluated_name))}
    metrics |= {
        "best_epoch": progress.best_epoch,
        "history": progress.history,
        **({"parts_of_epoch": inputs.per_epoch} if inputs.per_epoch > 1 else {}),
        "data": dataclasses.asdict(data.summary),
        "tokens": {name: dataclasses.asdict(counts) for name, counts in inputs.counts.items()},
        "cost": cost.values(count_trainable_weights(model)),
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
    return FitResult(bundle, metrics, asked, lengths)


@contextlib.contextmanager
def _dtype_policy(name: str) -> Iterator[None]:
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def _evaluate(
    data: Data, inputs: Inputs, evaluator: Evaluator, validation: Source, before: BeforeCalibration | None
) -> tuple[dict[str, Any], dict[str, Any], list[ScoredSplit]]:
    """The decision found on validation rows, the scores, and the answers to the rows that were not trained on."""
    task, labels, name = data.task, data.labels, data.evaluated_name
    answers = evaluator.predict(validation)
    decision = before.decision if before else task.decision(data.validation, labels, answers)
    asked = [ScoredSplit("validation", data.validation, answers)]
    metrics: dict[str, Any] = {
        "judged_on": name,
        "validation": task.scores(data.validation, labels, answers, decision),
    }
    if data.test is not None:
        answers = evaluator.predict(inputs.evaluated("test", task.targets(data.test, labels)))
        asked.append(ScoredSplit("test", data.test, answers))
    metrics[name] = scores = task.scores(data.evaluated, labels, answers, decision, intervals=True)
    if before:
        metrics["calibration"] = before.told(metrics)
        logger.info(f"{name}: {describe_calibration(before.calibration, before.scores[name], scores)}")
    value = scores[task.metric]
    logger.info(f"{name}: {task.metric} {'is undefined for these rows' if value is None else f'{value:.4f}'}")
    return decision, metrics, asked


def _baseline(config: ResolvedConfig, data: Data, inputs: Inputs, scores: dict[str, Any]) -> dict[str, Any]:
    """What the baseline is and scores on the judged rows; says how that compares with the model's scores."""
    task = data.task
    train, validation, evaluated = (
        inputs.part(name) for name in ("train", "validation", data.evaluated_name)
    )
    description, result = task.baseline(train, validation, evaluated, data.labels, config.train.seed)
    logger.info(f"{task.baseline_name}: {description}")
    logger.info(baseline.compare(scores, result, task.metric, task.baseline_name))
    return {"description": description, **result}
