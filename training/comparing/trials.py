"""Trains a candidate at each rate, takes the one that is best on validation rows, and asks it the test rows."""

import dataclasses
import gc
import statistics
import time
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from training.baseline import fit_baseline
from training.cli import say
from training.comparing.candidates import CandidateTask, Shape, build, describe, level_size, weights_of
from training.comparing.workplace import Workplace
from training.config import FitConfig
from training.data import Data
from training.inputs import Inputs
from training.judge import Judge
from training.learner import train
from training.loop import Standing


def tried(
    name: str,
    shape: Shape,
    target: int | None,
    rates: Sequence[float],
    config: FitConfig,
    data: Data,
    inputs: Inputs,
    place: Workplace,
) -> dict[str, Any]:
    """The result of a candidate, JSON values.

    Args:
        name: Of the candidate.
        shape: What it is built from.
        target: Number of weights to come near to; None: it keeps the feed-forward width of the settings.
        rates: Learning rates to try, each in a training of its own.
        config: All other settings.
        data: The parts of the data; the test rows are asked after the choice of the rate.
        inputs: Their tokens.
        place: Keeps trainings that were stopped.

    Raises:
        Stopped: Told to stop; a checkpoint is kept.
        Diverged: The loss of a training left the numbers.
    """
    encoder = shape.encoder
    size = encoder.intermediate_dim if target is None else level_size(name, shape, target)
    description = describe(name, encoder, size)
    task = CandidateTask.of(data.task, name, size)  # pyright: ignore[reportArgumentType]
    tokens = int(inputs.text_lengths("train").sum())
    best: tuple[dict[str, Any], Judge] | None = None
    tries = []
    for rate in rates:
        say(f"{name}: {description}; rate {rate:g}")
        judge, progress = _trained(name, task, rate, config, data, inputs, place)
        tries.append(_told(rate, progress, tokens, task.metric))
        if best is None or tries[-1]["validation"] > best[0]["validation"]:
            best = tries[-1], judge
        gc.collect()
    assert best is not None
    chosen, judge = best
    assert data.test is not None
    probabilities = judge.answers(inputs.judged("test", task.targets(data.test, data.labels)))
    return {
        "description": description,
        "size": size,
        "weights": weights_of(judge.model),
        **chosen,
        "tries": tries,
        "answers": probabilities.argmax(axis=1).tolist(),
    }


def _trained(
    name: str,
    task: CandidateTask,
    rate: float,
    config: FitConfig,
    data: Data,
    inputs: Inputs,
    place: Workplace,
) -> tuple[Judge, Standing]:
    folder, begun = place.training(name, rate)
    keras.utils.set_random_seed(config.train.seed)
    data = dataclasses.replace(data, task=task)
    optimizer = dataclasses.replace(config.optimizer, learning_rate=rate)
    config = dataclasses.replace(config, optimizer=optimizer, resume=begun)
    validation = inputs.judged("validation", task.targets(data.validation, data.labels))
    _, judge, progress = train(config, data, inputs, validation, folder)
    return judge, progress


def _told(rate: float, progress: Standing, tokens: int, metric: str) -> dict[str, Any]:
    """One training: "rate", "validation" (the metric), "epochs", "best_epoch", times of an epoch and "history"."""
    return {
        "rate": rate,
        "validation": progress.best_metric,
        "epochs": progress.epoch,
        "best_epoch": progress.best_epoch + 1,
        **times_of_epoch(progress.history, tokens),
        "history": [epoch[f"val_{metric}"] for epoch in progress.history],
    }


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
