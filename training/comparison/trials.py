"""Trains candidates, and chooses among the trainings of one with different rates by validation rows."""

import dataclasses
import statistics
import time
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from training.baselines.text_linear import fit_baseline
from training.comparison.candidates import HEADS, CandidateTask, Shape, build, level_size
from training.comparison.folder import Workplace
from training.config.config import ResolvedConfig
from training.data.inputs import Inputs
from training.data.load import Data
from training.engine.trainer import train
from training.runs.context import RunContext
from training.runtime.resource_usage import count_trainable_weights


def level(name: str, shape: Shape, target: int) -> int:
    """The size at which a candidate has about as many weights as the target; attention with its heads is as it is."""
    return shape.encoder.intermediate_dim if name == HEADS else level_size(name, shape, target)


def tried(
    name: str, size: int, rate: float, config: ResolvedConfig, data: Data, inputs: Inputs, place: Workplace
) -> dict[str, Any]:
    """One training of a candidate and its answers to the test rows, which nobody looks at before the rate is chosen.

    Args:
        name: Of the candidate.
        size: Of the candidate.
        rate: Its learning rate.
        config: All other settings.
        data: The parts of the data.
        inputs: Their tokens.
        place: Keeps the training when it is stopped, and knows it again.

    Returns:
        JSON values: "rate", "weights", "validation" (accuracy at the best epoch), "epochs", "best_epoch", times of an
        epoch, "history" (validation accuracy of each epoch) and "answers".

    Raises:
        Interrupted: Told to stop; a checkpoint is kept.
        TrainingDiverged: The loss left the numbers.
    """
    folder, begun = place.training(name, rate)
    keras.utils.set_random_seed(config.train.seed)
    task = CandidateTask.of(data.task, name, size)  # pyright: ignore[reportArgumentType]
    optimizer = dataclasses.replace(config.optimizer, learning_rate=rate)
    config = dataclasses.replace(config, optimizer=optimizer, resume=begun)
    validation = inputs.evaluated("validation", task.targets(data.validation, data.labels))
    context = RunContext(config, folder, scratch=folder)
    evaluator, progress = train(context, dataclasses.replace(data, task=task), inputs, validation)
    assert data.test is not None
    probabilities = evaluator.predict(inputs.evaluated("test", task.targets(data.test, data.labels)))
    return {
        "rate": rate,
        "weights": count_trainable_weights(evaluator.model),
        "validation": progress.best_metric,
        "epochs": progress.epoch,
        "best_epoch": progress.best_epoch + 1,
        **times_of_epoch(progress.history, int(inputs.text_lengths("train").sum())),
        "history": [epoch[f"val_{task.metric}"] for epoch in progress.history],
        "answers": probabilities.argmax(axis=1).tolist(),
    }


def chosen(tries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The try that is best on validation rows, of equal ones the first, with all "tries" but for their answers."""
    best = max(tries, key=lambda each: each["validation"])
    told = [{key: value for key, value in each.items() if key != "answers"} for each in tries]
    return {**best, "tries": told}


def times_of_epoch(history: Sequence[dict[str, Any]], tokens: float) -> dict[str, float]:
    """Time of the training steps of the middle epoch, by the clock and of the processor.

    Args:
        history: Of the epochs, with "tokens_per_second" and "tokens_per_cpu_second".
        tokens: Real tokens of an epoch.

    Returns:
        "seconds_per_epoch" and "cpu_seconds_per_epoch", those that the history tells.
    """
    names = {"seconds_per_epoch": "tokens_per_second", "cpu_seconds_per_epoch": "tokens_per_cpu_second"}
    speeds = {name: [epoch[key] for epoch in history if epoch.get(key)] for name, key in names.items()}
    return {name: tokens / statistics.median(values) for name, values in speeds.items() if values}


def linear(data: Data, seed: int) -> tuple[dict[str, Any], Any]:
    """The result of the linear baseline on the same rows, and the fitted baseline."""
    assert data.test is not None
    task, clock, processor = data.task, time.monotonic(), time.process_time()
    fitted = fit_baseline(
        data.train.texts(), task.targets(data.train, data.labels), multi_label=False, seed=seed
    )
    seconds = {
        "seconds_in_all": time.monotonic() - clock,
        "cpu_seconds_in_all": time.process_time() - processor,
    }
    right = fitted.predict(data.validation.texts()) == np.asarray(task.targets(data.validation, data.labels))
    return {
        "description": fitted.description,
        "weights": int(fitted.weights.size + fitted.biases.size),
        "validation": float(right.mean()),
        **seconds,
        "answers": fitted.predict(data.test.texts()).tolist(),
    }, fitted


def untrained(name: str, shape: Shape, size: int, longest: int) -> Any:
    """A candidate of a size that takes texts of so many tokens, to be timed: weights do not matter for that."""
    encoder = dataclasses.replace(shape.encoder, max_length=max(longest, shape.encoder.max_length))
    return build(name, dataclasses.replace(shape, encoder=encoder), size)
