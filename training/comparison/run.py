"""Runs a comparison: trains, evaluates and times the candidates."""

import contextlib
import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from kmha.bundle.bundle import Bundle
from training.comparison import trials
from training.comparison.candidates import HEADS, LINEAR, Shape, build, describe
from training.comparison.existing_runs import run_result
from training.comparison.folder import ComparisonFolder
from training.comparison.latency import Caller, latencies, linear_caller, model_caller
from training.comparison.scoring import reference_of, score_predictions
from training.config.config import ResolvedConfig
from training.config.defaults import encoder_config
from training.data.inputs import Inputs, make_inputs
from training.data.load import Data
from training.runtime.resource_usage import count_trainable_weights

logger = logging.getLogger("kmha")

# Enough to build a text of any length.
_SAMPLE_ROWS = 2000


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
    with _without_retracing_warnings():
        return _compare(plan, config, data, folder, scratch)


@contextlib.contextmanager
def _without_retracing_warnings() -> Iterator[None]:
    """Hides TensorFlow's warnings about repeated tracing: every model is traced once."""
    logger = logging.getLogger("tensorflow")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


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
    target = (
        count_trainable_weights(build(HEADS, shape, shape.encoder.intermediate_dim)) if networks else None
    )
    results = _train(networks, shape, target or 0, plan.rates, config, data, inputs, folder)
    callers: dict[str, Caller] = _network_callers(results, shape, max(plan.lengths))
    if LINEAR in plan.candidates:
        results[LINEAR], fitted = trials.train_linear(data, config.train.seed)
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
    sizes = {name: trials.candidate_size(name, shape, target) for name in networks}
    tries: dict[str, list[dict[str, Any]]] = {name: [] for name in networks}
    for rate in rates:
        for name in networks:
            result = folder.result(name, rate)
            if result is None:
                logger.info(f"{name}, learning rate {rate:g}: {describe(name, shape.encoder, sizes[name])}")
                result = trials.train_candidate(name, sizes[name], rate, config, data, inputs, folder)
                folder.save(name, rate, result)
            tries[name].append(result)
    return {
        name: {
            "description": describe(name, shape.encoder, sizes[name]),
            "size": sizes[name],
            **trials.select_best(tries[name]),
        }
        for name in networks
    }


def _network_callers(
    results: Mapping[str, dict[str, Any]], shape: Shape, max_tokens: int
) -> dict[str, Caller]:
    models: dict[str, keras.Model] = {
        name: trials.build_for_timing(name, shape, result["size"], max_tokens)
        for name, result in results.items()
    }
    return {
        name: model_caller(model, shape.encoder.vocabulary_size, max_tokens) for name, model in models.items()
    }


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
