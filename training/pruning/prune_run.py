"""Writes a pruned run, with its size, latency and scores before and after."""

import dataclasses
import json
import logging
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from kmha.bundle.bundle import Bundle
from kmha.bundle.manifest import MODEL
from kmha.calibration import Calibration, calibrate
from kmha.errors import InputError
from training.cli.parser import parse
from training.config.config import DataSection, FinetuneSection, FitConfig, task_section
from training.config.defaults import resolve_config
from training.data.load import Data, describe, load_data
from training.data.sources import file_source
from training.engine.trainer import StartingModel
from training.job.train_and_evaluate import FitResult, report_fit, train_and_evaluate
from training.pruning.apply import PrunedModel, count_weights
from training.pruning.importance import EvaluationRows
from training.runs.run_folder import CONFIG, METRICS, RUN_LOG, RunContext
from training.runtime.round_robin import time_in_turns
from training.tasks.create import make_task

logger = logging.getLogger("kmha")

TIMED_ROWS, TIMED_ROUNDS = 50, 5
BEFORE, CUT, AFTER = "before", "cut", "after"


def write_pruned_run(
    run: Path,
    pruned: PrunedModel,
    share: float,
    rows: EvaluationRows,
    config: FitConfig,
    command: str,
    folder: Path,
    scratch: Path,
) -> dict[str, Any]:
    """Fine-tunes a pruned model and writes its run folder.

    Returns:
        {"share", "heads", "feed_forward_rows", "weights", "block_weights", "bytes", "latency_ms": {"before", "after"},
        "scores": {"before", "cut", "after"}}, as JSON values; "cut" is before the fine-tuning.
    """
    bundle = rows.bundle
    scores = {
        BEFORE: rows.evaluator().scores(),
        CUT: rows.with_bundle(dataclasses.replace(bundle, model=pruned.build())).evaluator().scores(),
    }
    details = {name: bundle.details[name] for name in ("pretrained",) if name in bundle.details}

    def build_uncalibrated() -> Any:
        model = pruned.build()
        # Fine-tuning fits another calibration.
        calibrate(model, Calibration.of(bundle.details).inverse())
        return model

    start = StartingModel(bundle.preprocessor, bundle.labels, build_uncalibrated, details)
    fit_result, data = _fine_tune(config, start, folder, scratch)
    if bundle.abstain_below is not None:
        logger.info(
            "abstain_below is removed, it belongs to the original model; see training.calibrate --precision"
        )
    if fit_result.metrics["best_epoch"] < 0:
        logger.info("fine-tuning did not improve the validation score: the weights stay as they were pruned")
    after: Bundle = fit_result.bundle
    scores[AFTER] = rows.with_bundle(after).evaluator().scores()
    result: dict[str, Any] = {"share": share, "heads": pruned.heads, "feed_forward_rows": pruned.rows}
    counts = zip(count_weights(bundle.model), count_weights(after.model), strict=True)
    for name, values in zip(("weights", "block_weights"), counts, strict=True):
        result[name] = dict(zip((BEFORE, AFTER), values, strict=True))
    after.details["pruned"] = {"run": run.resolve().name, "command": command, **result}
    after.save(folder)
    sizes = [(each / MODEL).stat().st_size for each in (run, folder)]
    source = rows.sample(TIMED_ROWS, 0).source
    plans = source.plans(source.buckets([], 1), 1, 1, None)
    times = latencies_ms([bundle.model, after.model], [source.batch(plan)["features"] for plan in plans])
    for name, values in (("bytes", sizes), ("latency_ms", times)):
        result[name] = dict(zip((BEFORE, AFTER), values, strict=True))
    result["scores"] = scores
    _add_comment(folder / CONFIG, run, share)
    metrics = fit_result.metrics | {"pruned": result}
    (folder / METRICS).write_text(json.dumps(metrics, ensure_ascii=False, indent=2) + "\n", "utf-8")
    if config.report:
        report_fit(RunContext(resolve_config(config), folder, scratch), data, fit_result, metrics, command)
    return result


def latencies_ms(models: Sequence[Any], features: Sequence[dict[str, np.ndarray]]) -> list[float]:
    """The median latency of each model for one row, in milliseconds, in TensorFlow, without tokenizing."""
    rows = [{name: tf.constant(values) for name, values in row.items()} for row in features]

    def calls(model: Any) -> list[Callable[[], Any]]:
        forward = tf.function(lambda row: model(row, training=False), reduce_retracing=True, autograph=False)
        return [lambda row=row: forward(row).numpy() for row in rows]

    by_model = {str(number): calls(model) for number, model in enumerate(models)}
    time_in_turns(by_model, 1)  # tracing
    seconds = time_in_turns(by_model, TIMED_ROUNDS)
    return [1000 * float(np.median(each)) for each in seconds.values()]


def _add_comment(path: Path, run: Path, share: float) -> None:
    """Writes above the settings that they alone do not make the run."""
    comment = (
        f"# Settings that fine-tuned a model which training.heads --prune {share:g} made of {run.name};\n"
        "# training.fit with these settings starts from an unpruned model.\n"
    )
    path.write_text(comment + path.read_text("utf-8"), "utf-8")


@dataclasses.dataclass(frozen=True)
class FineTuning:
    """Settings of the fine-tuning."""

    out: Path
    overwrite: bool
    train: Path | None
    epochs: int
    learning_rate: float


def fine_tuning_config(run: Path, fine_tuning: FineTuning) -> FitConfig:
    """The configuration of the run, without the settings of its initial weights; InputError without config.toml."""
    path = run / CONFIG
    if not path.is_file():
        raise InputError(f"{run}: expected {CONFIG}, the settings of the run, got none")
    config = parse(FitConfig, ["--config", str(path)], "python -m training.heads")
    data = config.data
    if fine_tuning.train is not None:
        data = dataclasses.replace(data, train=fine_tuning.train, tfds="")
    _check_files(data)
    return dataclasses.replace(
        config,
        config=None,
        out=fine_tuning.out,
        overwrite=fine_tuning.overwrite,
        resume=False,
        baseline=False,
        tensorboard=False,
        data=data,
        # Shape, vocabulary and weights are those of the run.
        encoder=dataclasses.replace(config.encoder, pretrained="", vectors=None),
        text=dataclasses.replace(config.text, vocabulary=None, prune=False),
        finetune=FinetuneSection(),
        train=dataclasses.replace(config.train, epochs=fine_tuning.epochs),
        optimizer=dataclasses.replace(config.optimizer, learning_rate=fine_tuning.learning_rate),
    )


def _check_files(data: DataSection) -> None:
    """Checks that the files still exist, before any long work."""
    for name, path in (("train", data.train), ("validation", data.validation), ("test", data.test)):
        if path is None:
            continue
        try:
            file_source(path)
        except InputError as error:
            hint = "; --train names other training rows" if name == "train" else f", the run's {name} rows"
            raise InputError(f"{error}{hint}") from error


def _fine_tune(
    config: FitConfig, start: StartingModel, folder: Path, scratch: Path
) -> tuple[FitResult, Data]:
    """Trains a model, evaluated on the validation rows of its run; test rows are only excluded from training.

    Raises InputError if the rows are invalid, or have labels that the model does not have.
    """
    config = resolve_config(config)
    data = load_data(config, make_task(config.task, task_section(config)), scratch)
    unknown = sorted(set(data.labels) - set(start.labels))
    if unknown:
        name = data.origins["train"]["name"]
        raise InputError(f"{name}: expected labels of the run, got also {', '.join(unknown[:5])}")
    for line in describe(data):
        logger.info(line)
    data = dataclasses.replace(data, labels=start.labels, test=None)
    # Pruning cannot be resumed, so its checkpoint goes to the scratch folder.
    unfinished = scratch / "unfinished"
    unfinished.mkdir()
    fit_result = train_and_evaluate(RunContext(config, unfinished, scratch), data, start)
    shutil.move(unfinished / RUN_LOG, folder / RUN_LOG)
    return fit_result, data
