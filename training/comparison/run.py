"""One comparison, from checked settings to figures."""

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
from training.comparison.folder import Workplace
from training.comparison.latency import Caller, latencies, linear_caller, model_caller
from training.comparison.scoring import reference_of, scored
from training.config.config import ResolvedConfig
from training.config.encoder_shape import encoder_config
from training.data.inputs import Inputs, make_inputs
from training.data.load import Data
from training.runtime.resource_usage import count_trainable_weights

logger = logging.getLogger("kmha")

# Enough to cut a text of any length from.
_SAMPLE_ROWS = 2000


@dataclasses.dataclass(frozen=True)
class Wanted:
    """Who is compared, and how.

    Attributes:
        candidates: By name.
        runs: Folders of runs.
        rates: Learning rates, each tried by every trained network.
        lengths: In tokens, at which answers are timed.
        rounds: Of timing.
    """

    candidates: Sequence[str]
    runs: Sequence[Path]
    rates: Sequence[float]
    lengths: Sequence[int]
    rounds: int


def compare(
    expected: Wanted, config: ResolvedConfig, data: Data, place: Workplace, scratch: Path
) -> dict[str, Any]:
    """Trains, judges and times all that are wanted; what is kept in the workplace is not trained again.

    Args:
        expected: Who and how.
        config: Settings of every training, the shape filled in.
        data: The parts of the data, with test rows.
        place: Keeps what is finished.
        scratch: Where token ids are kept meanwhile.

    Returns:
        JSON values: "rows" of each part, "reference" (who the differences are to), "weights" (the "target" and the
        "largest_distance" from it), "rates", and "candidates": of each "name", "description", "weights", scores,
        "latency_ms" by length, and of trained ones "rate", "validation", "epochs", "seconds_per_epoch", "tries".

    Raises:
        Interrupted: Told to stop; the same comparison goes on from there.
        TrainingDiverged: The loss of a training left the numbers.
    """
    with _many_models():
        return _compared(expected, config, data, place, scratch)


@contextlib.contextmanager
def _many_models() -> Iterator[None]:
    """Without TensorFlow's warnings that much is traced: every model of a comparison is, once."""
    logger = logging.getLogger("tensorflow")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _compared(
    expected: Wanted, config: ResolvedConfig, data: Data, place: Workplace, scratch: Path
) -> dict[str, Any]:
    bundles = {_run_name(path, expected.runs): (path, Bundle.load(path)) for path in expected.runs}
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
    networks = [name for name in expected.candidates if name != LINEAR]
    target = (
        count_trainable_weights(build(HEADS, shape, shape.encoder.intermediate_dim)) if networks else None
    )
    results = _trained(networks, shape, target or 0, expected.rates, config, data, inputs, place)
    callers: dict[str, Caller] = _network_callers(results, shape, max(expected.lengths))
    if LINEAR in expected.candidates:
        results[LINEAR], fitted = trials.linear(data, config.train.seed)
        callers[LINEAR] = linear_caller(fitted, part, data.train.texts()[:_SAMPLE_ROWS])
    for name, (path, bundle) in bundles.items():
        results[name] = run_result(path, bundle, data)
        own = bundle.preprocessor
        callers[name] = model_caller(bundle.model, len(own.vocabulary), own.max_length)
    logger.info(f"timing answers, rounds: {expected.rounds}")
    return _told(results, latencies(callers, expected.lengths, expected.rounds), target, networks, data) | {
        "rates": list(expected.rates)
    }


def _trained(
    networks: Sequence[str],
    shape: Shape,
    target: int,
    rates: Sequence[float],
    config: ResolvedConfig,
    data: Data,
    inputs: Inputs,
    place: Workplace,
) -> dict[str, dict[str, Any]]:
    """The results of the networks, each at its best rate; all are trained with one rate before any with the next."""
    sizes = {name: trials.level(name, shape, target) for name in networks}
    tries: dict[str, list[dict[str, Any]]] = {name: [] for name in networks}
    for rate in rates:
        for name in networks:
            result = place.kept(name, rate)
            if result is None:
                logger.info(f"{name}, rate {rate:g}: {describe(name, shape.encoder, sizes[name])}")
                result = trials.tried(name, sizes[name], rate, config, data, inputs, place)
                place.keep(name, rate, result)
            tries[name].append(result)
    return {
        name: {
            "description": describe(name, shape.encoder, sizes[name]),
            "size": sizes[name],
            **trials.chosen(tries[name]),
        }
        for name in networks
    }


def _network_callers(results: Mapping[str, dict[str, Any]], shape: Shape, longest: int) -> dict[str, Caller]:
    models: dict[str, keras.Model] = {
        name: trials.untrained(name, shape, result["size"], longest) for name, result in results.items()
    }
    return {
        name: model_caller(model, shape.encoder.vocabulary_size, longest) for name, model in models.items()
    }


def _told(
    results: Mapping[str, dict[str, Any]],
    times: Mapping[str, Mapping[int, float]],
    target: int | None,
    networks: Sequence[str],
    data: Data,
) -> dict[str, Any]:
    assert data.test is not None
    scores = scored({name: result["answers"] for name, result in results.items()}, data)
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
    """The folder's own name, or where two are called so the whole path."""
    same = sum(other.name == path.name for other in runs)
    return str(path) if same > 1 or not path.name else f"run {path.name}"
