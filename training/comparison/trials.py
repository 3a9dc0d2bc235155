"""Trains candidates, and selects their learning rates on validation rows."""

import dataclasses
import statistics
import time
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from training.baselines.text_linear import fit_baseline
from training.comparison.candidates import HEADS, CandidateTask, Shape, build, match_weights
from training.comparison.folder import ComparisonFolder
from training.config.config import ResolvedConfig
from training.data.inputs import Inputs
from training.data.load import Data
from training.engine.trainer import train
from training.runs.run_folder import RunContext
from training.runtime.resource_usage import count_trainable_weights


def candidate_size(name: str, shape: Shape, target: int) -> int:
    """The size with which a candidate has about the target number of weights; the first candidate keeps its own."""
    return shape.encoder.intermediate_dim if name == HEADS else match_weights(name, shape, target)


def train_candidate(
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

    Raises:
        Interrupted: A signal stopped the training; a checkpoint is saved.
        TrainingDiverged: The loss is not finite.
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


def epoch_times(history: Sequence[dict[str, Any]], tokens: float) -> dict[str, float]:
    """Time of the training steps of an epoch of so many real tokens, from the median speed.

    Returns:
        "seconds_per_epoch" and "cpu_seconds_per_epoch", as far as the history has the speeds.
    """
    names = {"seconds_per_epoch": "tokens_per_second", "cpu_seconds_per_epoch": "tokens_per_cpu_second"}
    speeds = {name: [epoch[key] for epoch in history if epoch.get(key)] for name, key in names.items()}
    return {name: tokens / statistics.median(values) for name, values in speeds.items() if values}


def train_linear(data: Data, seed: int) -> tuple[dict[str, Any], Any]:
    """Trains the linear baseline; returns its result, as `train_candidate` does, and the fitted baseline."""
    assert data.test is not None
    task, start, cpu_start = data.task, time.monotonic(), time.process_time()
    fitted = fit_baseline(
        data.train.texts(), task.targets(data.train, data.labels), multi_label=False, seed=seed
    )
    seconds = {
        "seconds_in_all": time.monotonic() - start,
        "cpu_seconds_in_all": time.process_time() - cpu_start,
    }
    correct = fitted.predict(data.validation.texts()) == np.asarray(
        task.targets(data.validation, data.labels)
    )
    return {
        "description": fitted.description,
        "weights": int(fitted.weights.size + fitted.biases.size),
        "validation": float(correct.mean()),
        **seconds,
        "answers": fitted.predict(data.test.texts()).tolist(),
    }, fitted


def build_for_timing(name: str, shape: Shape, size: int, max_tokens: int) -> Any:
    """Builds a candidate for texts of up to `max_tokens` tokens, for timing."""
    encoder = dataclasses.replace(shape.encoder, max_length=max(max_tokens, shape.encoder.max_length))
    return build(name, dataclasses.replace(shape, encoder=encoder), size)
