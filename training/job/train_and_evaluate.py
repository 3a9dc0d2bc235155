"""The steps of a run that need TensorFlow: tokenize, train, calibrate, evaluate, fit the baseline, report."""

import contextlib
import dataclasses
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np

from kmha.bundle.bundle import Bundle
from kmha.bundle.manifest import CROSS_VALIDATED, read_manifest
from training.cli.exceptions import NotChief
from training.config.config import NO_ENCODER
from training.config.defaults import has_few_texts
from training.data.inputs import Inputs, Source, make_preprocessor, tokenize_for_training
from training.data.load import Data
from training.data.split import Large
from training.distillation.task import DistillationTask, add_teacher_predictions
from training.engine.loop import TrainingProgress
from training.engine.trainer import StartingModel, train
from training.evaluation.evaluator import Evaluator
from training.evaluation.model_calibration import (
    BeforeCalibration,
    calibrate_on_validation,
    describe_calibration,
)
from training.fewshot.train import train_few_labels
from training.io.examples import Subset
from training.metrics.bootstrap import ResampledScores
from training.metrics.paired import describe_comparison, with_comparison
from training.reporting.build import build_report, write_report
from training.reporting.report_data import ReportData, ScoredSplit
from training.runs.run_folder import CARD, REPORT, RunContext
from training.runtime.memory_estimate import available_bytes, check_label_memory
from training.runtime.mixed_precision import POLICIES, to_float32
from training.runtime.resource_usage import bytes_by_part, count_trainable_weights
from training.tasks.match.rows import TEXT_A, TEXT_B

logger = logging.getLogger("kmha")

# Enough to calibrate an 8-bit export; about 300 kB with the default text length.
SAMPLE_ROWS = 256
SAMPLE_CHARACTERS = 2_000
# The linear baseline has a weight for each n-gram and label.
MOST_BASELINE_LABELS = 1_000
LINEAR_PATH = "linear_path"  # key of metrics.json
PERCENTILES = (50, 90, 99, 100)


@dataclasses.dataclass(frozen=True)
class FitResult:
    """The result of a training."""

    bundle: Bundle
    metrics: dict[str, Any]
    scored_splits: list[ScoredSplit]  # rows that it was not trained on; the last ones have the final scores
    lengths: dict[str, np.ndarray]  # tokens of each text, by part


def train_and_evaluate(
    context: RunContext, data: Data, starting_model: StartingModel | None = None
) -> FitResult:
    """Trains a model on checked data and evaluates it; raises NotChief on other workers, and the errors of `fit`."""
    config, cost = context.config, context.cost
    scored = max(len(part.rows) for part in (data.validation, data.evaluated))
    several = getattr(data.task, "multi_label", False)
    check_label_memory(len(data.labels), several, len(data.train.rows), scored, available_bytes())
    keras.utils.set_random_seed(config.train.seed)
    with cost.measure("tokens"):
        inputs = _tokenize(context, data, starting_model)
    if config.distill.teacher:
        with cost.measure("teacher"):
            data, inputs = add_teacher_predictions(config, data, inputs, context.scratch)
    with cost.measure("training"), _dtype_policy(POLICIES[config.precision]), contextlib.closing(inputs):
        validation = inputs.evaluated("validation", data.task.targets(data.validation, data.labels))
        if data.has_few_labels and starting_model is None:
            evaluator, choice = train_few_labels(context, data, inputs, validation)
            progress, fewshot = TrainingProgress(best_epoch=0), {"fewshot": choice}
        else:
            fewshot = {}
            evaluator, progress = train(context, data, inputs, validation, starting_model)
    if not context.coordinator.is_chief:
        raise NotChief
    with cost.measure("judging"), _dtype_policy(POLICIES["float32"]):
        evaluator = dataclasses.replace(evaluator, model=to_float32(evaluator.model))
        before = calibrate_on_validation(data, inputs, evaluator, validation) if config.calibrate else None
        decision, metrics, scored_splits = _evaluate(data, inputs, evaluator, validation, before)
        scores = metrics[data.evaluated_name]
        resampled = data.task.resampled(data.evaluated, data.labels, scored_splits[-1].predictions, decision)
        if evaluator.linear_paths is not None and config.encoder.size != NO_ENCODER:
            metrics[LINEAR_PATH] = _evaluate_path(data, inputs, evaluator, validation, scores, resampled)
    if config.baseline and data.is_cross_validated and data.test is None:
        logger.info("no baseline: it needs other rows than the training rows, --data.test")
    elif config.baseline and len(data.labels) > MOST_BASELINE_LABELS:
        logger.info(f"no baseline: it takes too much memory with more than {MOST_BASELINE_LABELS:,} labels")
    elif config.baseline:
        with cost.measure("baseline"):
            metrics["baseline"] = _fit_baseline(context, data, inputs, scores, resampled)
    if isinstance(data.task, DistillationTask):
        metrics["teacher"] = data.task.compare_with_teacher(
            scores, resampled, data.evaluated, data.labels, context.scratch
        )
    lengths = {name: inputs.text_lengths(name) for name in dict.fromkeys(("train", data.evaluated_name))}
    metrics |= _describe_training(context, data, inputs, evaluator, progress) | fewshot
    details = {
        "columns": data.columns.named,
        "data": data.origins,
        "lengths": length_percentiles(lengths["train"]),
        **({"pretrained": config.encoder.pretrained} if config.encoder.pretrained else {}),
        **({CROSS_VALIDATED: True} if data.is_cross_validated else {}),
        **({"calibration": before.calibration.values()} if before else {}),
        **data.task.details_for_bundle,
        **(starting_model.details if starting_model else {}),
    }
    # Exports compare their predictions on it; those for training rows are too confident to show errors.
    parts = (data.train,) if data.is_cross_validated else (data.validation, data.train)
    sample = sample_texts(parts, config.train.seed)
    thresholds = decision.get("thresholds")
    bundle = Bundle(evaluator.model, inputs.preprocessor, data.labels, thresholds, details, sample)
    return FitResult(bundle, metrics, scored_splits, lengths)


def _tokenize(context: RunContext, data: Data, starting_model: StartingModel | None) -> Inputs:
    """Makes the preprocessor, unless there is a starting model, and tokenizes all parts of the data."""
    config = context.config
    large = Large(config.data.large_rows, config.train.seed)
    if starting_model is not None:
        preprocessor = starting_model.preprocessor
    else:
        vocabulary = config.checkpoint.vocabulary if config.checkpoint else None
        read = [data.train] if data.texts is None else [data.train, data.texts]
        whole_words = has_few_texts(config, len(data.train.rows)) and config.text.min_frequency == 1
        if whole_words and data.holds_out_validation:
            # The final linear path is fitted on them too. If only these texts had rare words in pieces, pieces would be
            # signs of their labels.
            read.append(data.validation)
        preprocessor = make_preprocessor(config.text, read, data.task, vocabulary, large, context.coordinator)
    # A teacher predicts all training rows before the training.
    streamed = None if config.distill.teacher else large
    inputs = tokenize_for_training(
        preprocessor, data.parts, context.scratch, data.task.masking, streamed, data.task.windows
    )
    columns = {TEXT_A: data.columns.text, TEXT_B: data.columns.text_b}
    for name, counts in inputs.counts.items():
        logger.info(counts.describe(" ".join(columns.get(word) or word for word in name.split(" "))))
    return inputs


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
    """The decision chosen on validation rows, the scores, and the predictions for rows that were not trained on."""
    task, labels, name = data.task, data.labels, data.evaluated_name
    predictions = evaluator.predict(validation)
    decision = before.decision if before else task.tune_thresholds(data.validation, labels, predictions)
    scored_splits = [ScoredSplit("validation", data.validation, predictions)]
    metrics: dict[str, Any] = {
        "judged_on": name,
        "metric": task.metric,
        "validation": task.scores(data.validation, labels, predictions, decision),
    }
    if data.test is not None:
        source = inputs.evaluated("test", task.targets(data.test, labels))
        if before and before.test_logits is not None:
            evaluator = evaluator.with_outputs(source, before.test_logits)
        predictions = evaluator.predict(source)
        scored_splits.append(ScoredSplit("test", data.test, predictions))
    metrics[name] = scores = task.scores(data.evaluated, labels, predictions, decision, intervals=True)
    if before:
        metrics["calibration"] = before.compare(metrics)
        logger.info(f"{name}: {describe_calibration(before.calibration, before.scores[name], scores)}")
    value = scores[task.metric]
    logger.info(f"{name}: {task.metric} {'is undefined for these rows' if value is None else f'{value:.4f}'}")
    return decision, metrics, scored_splits


def _evaluate_path(
    data: Data,
    inputs: Inputs,
    evaluator: Evaluator,
    validation: Source,
    scores: dict[str, Any],
    resampled: tuple[ResampledScores, ...],
) -> dict[str, Any]:
    """The scores of the linear path without the encoder, compared with the model's, and a line about them."""
    task, labels, evaluated = data.task, data.labels, data.evaluated
    held_out, final = evaluator.linear_paths or (None, None)
    predictions = task.predict_with_path(evaluator, held_out, validation)
    decision = task.tune_thresholds(data.validation, labels, predictions)
    if data.test is not None:
        source = inputs.evaluated("test", task.targets(data.test, labels))
        predictions = task.predict_with_path(evaluator, final, source)
    own = task.scores(evaluated, labels, predictions, decision)
    own_resampled = task.resampled(evaluated, labels, predictions, decision)
    result = with_comparison(scores, resampled, own, own_resampled, "linear path")
    logger.info(describe_comparison(scores, result, task.metric, "linear path alone")[0])
    return result


def _fit_baseline(
    context: RunContext,
    data: Data,
    inputs: Inputs,
    scores: dict[str, Any],
    resampled: tuple[ResampledScores, ...],
) -> dict[str, Any]:
    """Fits the baseline; returns its description and scores, and logs a comparison with the model's scores."""
    task = data.task
    train, validation, evaluated = (
        inputs.part(name) for name in ("train", "validation", data.evaluated_name)
    )
    if data.is_cross_validated:
        # The baseline holds out or cross-validates rows of its own, for its choices and thresholds.
        validation = dataclasses.replace(validation, rows=validation.rows[:0])
    seed = context.config.train.seed
    baseline = task.baseline(train, validation, evaluated, data.labels, seed)
    name = task.traits.baseline_name
    logger.info(f"{name}: {baseline.description}")
    result = with_comparison(scores, resampled, baseline.scores, baseline.resampled)
    for sentence in describe_comparison(scores, result, task.metric, name):
        logger.info(sentence)
    return {"name": name, "description": baseline.description, **result}


def _describe_training(
    context: RunContext, data: Data, inputs: Inputs, evaluator: Evaluator, progress: TrainingProgress
) -> dict[str, Any]:
    """The values of metrics.json that are no scores."""
    return {
        "best_epoch": progress.best_epoch,
        "history": progress.history,
        **({"parts_of_epoch": inputs.per_epoch} if inputs.per_epoch > 1 else {}),
        "data": dataclasses.asdict(data.summary),
        "tokens": {name: dataclasses.asdict(counts) for name, counts in inputs.counts.items()},
        "cost": context.cost.values(count_trainable_weights(evaluator.model), bytes_by_part(evaluator.model)),
    }


def length_percentiles(lengths: np.ndarray) -> dict[str, int]:
    """Percentiles of text lengths [R] in tokens: {"p50", "p90", "p99", "p100"}, each the length of a real text."""
    values = np.percentile(lengths, PERCENTILES, method="higher")
    return {f"p{percent}": int(value) for percent, value in zip(PERCENTILES, values, strict=True)}


def sample_texts(parts: Sequence[Subset], seed: int) -> list[Any]:
    """The texts, or pairs of texts, of up to 256 random rows, each truncated to 2,000 characters.

    They are of the first part, and of the next ones if it has fewer rows.
    """
    sample: list[Any] = []
    for part in parts:
        rng = np.random.default_rng([seed, 7])
        rows = np.sort(rng.choice(part.rows, min(SAMPLE_ROWS - len(sample), len(part.rows)), replace=False))
        fields = range(len(part.examples.texts))
        columns = [
            [text[:SAMPLE_CHARACTERS] for text in part.examples.read_texts(rows, field)] for field in fields
        ]
        sample += columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
    return sample


def report_fit(
    context: RunContext, data: Data, result: FitResult, metrics: dict[str, Any], command: str
) -> None:
    """Writes report.html and report.md into a run folder that has all other files."""
    try:
        report = build_report(_report_data(context, data, result, metrics, command))
        write_report(report, context.folder / REPORT, context.folder / CARD)
    # A failed figure or table must not discard hours of training.
    except Exception as error:
        reason = next(iter(str(error).splitlines()), "")
        logger.info(
            f"no report was written, {type(error).__name__}: {reason}; python -m training.report tries again"
        )


def _report_data(
    context: RunContext, data: Data, result: FitResult, metrics: dict[str, Any], command: str
) -> ReportData:
    return ReportData.of_bundle(
        result.bundle,
        read_manifest(context.folder),
        context.folder,
        name=context.config.out_folder().resolve().name,
        task=data.task,
        metric=data.task.metric,
        splits=result.scored_splits,
        scores=metrics[metrics["judged_on"]],
        metrics=metrics,
        lengths=result.lengths,
        train=data.train,
        command=command,
        mask_texts=context.config.mask_texts,
    )
