"""Runs a comparison: trains, evaluates and times the candidates."""

import dataclasses
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from kmha.bundle.bundle import Bundle
from training.baselines.text_linear import fit_baseline
from training.comparison.candidates import HEADS, LINEAR, CandidateTask, Shape, build, describe, match_weights
from training.comparison.folder import ComparisonFolder
from training.comparison.scoring import (
    Caller,
    epoch_times,
    latencies,
    linear_caller,
    model_caller,
    reference_of,
    run_result,
    score_predictions,
)
from training.config.config import ResolvedConfig
from training.config.defaults import encoder_config
from training.data.inputs import Inputs, make_inputs
from training.data.load import Data
from training.engine.trainer import train
from training.io.examples import label_ids
from training.runs.run_folder import RunContext
from training.runtime.resource_usage import count_trainable_weights

logger = logging.getLogger("kmha")

# Enough to build a text of any length.
_SAMPLE_ROWS = 2000


def _train_candidate(
    name: str,
    size: int,
    rate: float,
    config: ResolvedConfig,
    data: Data,
    inputs: Inputs,
    folder: ComparisonFolder,
) -> dict[str, Any]:
    """Trains a candidate with one learning rate, and predicts the test rows; `folder` saves a checkpoint.

    Returns:
        JSON values: "rate", "weights", "validation" (accuracy at the best epoch), "epochs", "best_epoch", times of an
        epoch, "history" (validation accuracy by epoch) and "answers" (predictions for the test rows).
    """
    checkpoint_folder, can_resume = folder.training(name, rate)
    keras.utils.set_random_seed(config.train.seed)
    task = CandidateTask.of(data.task, name, size)  # pyright: ignore[reportArgumentType]
    optimizer = dataclasses.replace(config.optimizer, learning_rate=rate)
    config = dataclasses.replace(config, optimizer=optimizer, resume=can_resume)
    validation = inputs.evaluated("validation", task.targets(data.validation, data.labels))
    context = RunContext(config, checkpoint_folder, scratch=checkpoint_folder)
    evaluator, progress = train(context, dataclasses.replace(data, task=task), inputs, validation)
    assert data.test is not None
    probabilities = evaluator.predict(inputs.evaluated("test", task.targets(data.test, data.labels)))
    return {
        "rate": rate,
        "weights": count_trainable_weights(evaluator.model),
        "validation": progress.best_metric,
        "epochs": progress.epoch,
        "best_epoch": progress.best_epoch + 1,
        **epoch_times(progress.history, int(inputs.text_lengths("train").sum())),
        "history": [epoch[f"val_{task.metric}"] for epoch in progress.history],
        "answers": probabilities.argmax(axis=1).tolist(),
    }


def select_best(tries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The training with the best validation score, the first of equals; "tries" lists all without predictions."""
    best = max(tries, key=lambda each: each["validation"])
    summaries = [{key: value for key, value in each.items() if key != "answers"} for each in tries]
    return {**best, "tries": summaries}


def _train_linear(data: Data, seed: int) -> tuple[dict[str, Any], Any]:
    """Trains the linear baseline; returns its result, as `_train_candidate` does, and the fitted baseline."""
    assert data.test is not None
    task, start, cpu_start = data.task, time.monotonic(), time.process_time()
    ids, _ = label_ids(data.validation.examples, data.validation.rows, data.labels)
    validation = dataclasses.replace(data.validation, rows=data.validation.rows[ids < len(data.labels)])
    fitted = fit_baseline(
        data.train.texts(),
        task.targets(data.train, data.labels),
        multi_label=False,
        seed=seed,
        validation=(validation.texts(), task.targets(validation, data.labels)),
    )
    seconds, cpu_seconds = time.monotonic() - start, time.process_time() - cpu_start
    return {
        "description": fitted.description,
        "weights": int(fitted.weights.size + fitted.biases.size),
        "validation": fitted.validation_score,
        "seconds_in_all": seconds,
        "cpu_seconds_in_all": cpu_seconds,
        "answers": fitted.predict(data.test.texts()).tolist(),
    }, fitted


@dataclasses.dataclass(frozen=True)
class ComparisonPlan:
    """Settings of a comparison."""

    candidates: Sequence[str]
    runs: Sequence[Path]
    rates: Sequence[float]
    lengths: Sequence[int]
    rounds: int


def compare(
    plan: ComparisonPlan, config: ResolvedConfig, data: Data, folder: ComparisonFolder, scratch: Path
) -> dict[str, Any]:
    """Trains, evaluates and times the candidates; saved results are not trained again.

    Returns:
        JSON values: "rows" of each part, "reference" (candidate that differences refer to), "weights" (the "target" and
        the "largest_distance" from it), "rates", and "candidates": of each "name", "description", "weights", scores,
        "latency_ms" by length, and of trained ones "rate", "validation", "epochs", "seconds_per_epoch", "tries".

    Raises:
        Interrupted: A signal stopped it; the same comparison resumes it.
        TrainingDiverged: The loss of a training is not finite.
    """
    # Hides TensorFlow's warnings about repeated tracing: every model is traced once.
    tensorflow_logger = logging.getLogger("tensorflow")
    before = tensorflow_logger.level
    tensorflow_logger.setLevel(logging.ERROR)
    try:
        return _compare(plan, config, data, folder, scratch)
    finally:
        tensorflow_logger.setLevel(before)


def _compare(
    plan: ComparisonPlan, config: ResolvedConfig, data: Data, folder: ComparisonFolder, scratch: Path
) -> dict[str, Any]:
    bundles = {_run_name(path, plan.runs): (path, Bundle.load(path)) for path in plan.runs}
    inputs = make_inputs(config.text, data.parts, scratch, data.task)
    for name, counts in inputs.counts.items():
        logger.info(counts.describe(name))
    part = inputs.preprocessor
    shape = Shape(
        encoder_config(config, len(part.vocabulary), part.unknown_id),
        len(data.labels),
        config.classify.pooling,
        config.classify.dropout,
    )
    networks = [name for name in plan.candidates if name != LINEAR]
    largest = shape.encoder.intermediate_dim
    target = count_trainable_weights(build(HEADS, shape, largest)) if networks else None
    results = _train(networks, shape, target or 0, plan.rates, config, data, inputs, folder)
    callers: dict[str, Caller] = _network_callers(results, shape, max(plan.lengths))
    if LINEAR in plan.candidates:
        results[LINEAR], fitted = _train_linear(data, config.train.seed)
        callers[LINEAR] = linear_caller(fitted, part, data.train.texts()[:_SAMPLE_ROWS])
    for name, (path, bundle) in bundles.items():
        results[name] = run_result(path, bundle, data)
        own = bundle.preprocessor
        callers[name] = model_caller(bundle.model, len(own.vocabulary), own.max_length)
    logger.info(f"measuring latency, {plan.rounds} rounds")
    return _summarize(results, latencies(callers, plan.lengths, plan.rounds), target, networks, data) | {
        "rates": list(plan.rates)
    }


def _train(
    networks: Sequence[str],
    shape: Shape,
    target: int,
    rates: Sequence[float],
    config: ResolvedConfig,
    data: Data,
    inputs: Inputs,
    folder: ComparisonFolder,
) -> dict[str, dict[str, Any]]:
    """Trains the networks, all with one learning rate before any with the next; returns each one's best result."""
    # The first candidate keeps its own size.
    own = shape.encoder.intermediate_dim
    sizes = {name: own if name == HEADS else match_weights(name, shape, target) for name in networks}
    tries: dict[str, list[dict[str, Any]]] = {name: [] for name in networks}
    for rate in rates:
        for name in networks:
            result = folder.result(name, rate)
            if result is None:
                logger.info(f"{name}, learning rate {rate:g}: {describe(name, shape.encoder, sizes[name])}")
                result = _train_candidate(name, sizes[name], rate, config, data, inputs, folder)
                folder.save(name, rate, result)
            tries[name].append(result)
    return {
        name: {
            "description": describe(name, shape.encoder, sizes[name]),
            "size": sizes[name],
            **select_best(tries[name]),
        }
        for name in networks
    }


def _network_callers(
    results: Mapping[str, dict[str, Any]], shape: Shape, max_tokens: int
) -> dict[str, Caller]:
    """Calls of new models for texts of up to `max_tokens` tokens; the weights do not matter for the time."""
    encoder = dataclasses.replace(shape.encoder, max_length=max(max_tokens, shape.encoder.max_length))
    shape = dataclasses.replace(shape, encoder=encoder)
    models = {name: build(name, shape, result["size"]) for name, result in results.items()}
    return {name: model_caller(model, encoder.vocabulary_size, max_tokens) for name, model in models.items()}


def _summarize(
    results: Mapping[str, dict[str, Any]],
    times: Mapping[str, Mapping[int, float]],
    target: int | None,
    networks: Sequence[str],
    data: Data,
) -> dict[str, Any]:
    assert data.test is not None
    scores = score_predictions({name: result["answers"] for name, result in results.items()}, data)
    rows = [
        {
            "name": name,
            **{key: value for key, value in result.items() if key != "answers"},
            **scores[name],
            "latency_ms": {str(length): ms for length, ms in times[name].items()},
        }
        for name, result in results.items()
    ]
    distances = [abs(results[name]["weights"] - target) / target for name in networks if target]
    parts = {"train": data.train, "validation": data.validation, "test": data.test}
    return {
        "rows": {name: len(part.rows) for name, part in parts.items()},
        "data": data.origins,
        "reference": reference_of({name: found["accuracy"] for name, found in scores.items()}),
        "weights": {"target": target, "largest_distance": max(distances, default=None)},
        "candidates": rows,
    }


def _run_name(path: Path, runs: Sequence[Path]) -> str:
    """The name of the folder, or its path if another run has the same name."""
    same = sum(other.name == path.name for other in runs)
    return str(path) if same > 1 or not path.name else f"run {path.name}"
