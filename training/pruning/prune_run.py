"""Writes a pruned run, with its size, latency and scores before and after."""

import dataclasses
import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from kmha.bundle.bundle import Bundle
from kmha.bundle.manifest import MODEL
from kmha.calibration import Calibration, calibrate
from training.config.config import FitConfig
from training.config.defaults import resolve_config
from training.engine.trainer import StartingModel
from training.job.train_and_evaluate import report_fit
from training.pruning.apply import PrunedModel, count_weights
from training.pruning.evaluation_rows import EvaluationRows
from training.pruning.fine_tuning import fine_tune
from training.runs.run_folder import CONFIG, METRICS, RunContext
from training.runtime.round_robin import time_in_turns

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

    Raises:
        InputError: The training rows are invalid, or have labels that the run does not have.
        Interrupted: A signal stopped the training.
        TrainingDiverged: The loss is not finite.
    """
    bundle = rows.bundle
    scores = {
        BEFORE: rows.evaluator().scores(),
        CUT: rows.with_bundle(dataclasses.replace(bundle, model=pruned.build())).evaluator().scores(),
    }
    details = {name: bundle.details[name] for name in ("pretrained",) if name in bundle.details}
    start = StartingModel(bundle.preprocessor, bundle.labels, _uncalibrated(pruned.build, bundle), details)
    fit_result, data = fine_tune(config, start, folder, scratch)
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
    comment = f"# Settings that fine-tuned a model which training.heads --prune {share:g} made of {run.name};"
    path.write_text(
        f"{comment}\n# training.fit with these settings starts from an unpruned model.\n{path.read_text('utf-8')}",
        "utf-8",
    )


def _uncalibrated(build: Callable[[], Any], bundle: Bundle) -> Callable[[], Any]:
    """Returns a function that builds the model without its calibration; fine-tuning fits another one."""

    def build_uncalibrated() -> Any:
        model = build()
        calibrate(model, Calibration.of(bundle.details).inverse())
        return model

    return build_uncalibrated
