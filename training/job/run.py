"""The pipeline of one training run: resolve settings, load data, train and evaluate, save, report.

Everything that can be checked without TensorFlow is checked before TensorFlow is imported.
"""

import contextlib
import json
import logging
import time
from typing import Any

from kmha.quiet import import_tensorflow
from training.cli.exceptions import NotChief
from training.config.config import FitConfig, ResolvedConfig, task_section
from training.config.defaults import resolve_config
from training.config.validation import check_same_answers, check_settings
from training.data.load import Data, describe, load_data
from training.distributed.coordinator import Coordinator
from training.engine.consistency import check_same_rows, check_same_settings
from training.io.scratch_folder import named, scratch_folder
from training.job.join_cluster import join_cluster, worker_config, worker_folder
from training.runs.context import RunContext
from training.runs.run_folder import METRICS, check_same_data
from training.runtime.malloc_tuning import tune_malloc
from training.tasks.create import make_task

logger = logging.getLogger("kmha")


def fit(config: FitConfig) -> dict[str, Any] | None:
    """Trains, evaluates and writes the run folder; with other workers if TF_CONFIG names them.

    Returns:
        The values of metrics.json; None on workers other than the chief worker.

    Raises:
        InputError: Settings or data cannot be used; only the checkpoint of an earlier run remains.
        Interrupted: A signal stopped the run; there is a checkpoint for --resume.
        TrainingDiverged: The loss was not finite.
        CheckpointWriteError: A checkpoint could not be written; earlier ones are intact.
        WorkerLost: Another worker was lost.
    """
    config = resolve_config(config)
    with join_cluster(config) as coordinator:
        check_settings(config)
        if coordinator.count > 1:
            check_same_settings(coordinator, config, len(coordinator.strategy.extended.worker_devices))
        metrics = None
        with contextlib.suppress(NotChief):
            metrics = _run(worker_config(config, coordinator), coordinator)
        # All workers wait until the run is written, and exit with the same status.
        coordinator.broadcast("end", lambda: None)
    return metrics


def _run(config: ResolvedConfig, coordinator: Coordinator) -> dict[str, Any]:
    with worker_folder(config, coordinator) as folder, scratch_folder(folder) as scratch:
        context = RunContext(config, folder, scratch, coordinator)
        started = time.monotonic()
        data = _load(context)
        _start_tensorflow(context, data)
        from training.job.train_and_evaluate import train_and_evaluate

        result = train_and_evaluate(context, data)
        metrics = {**result.metrics, "seconds": round(time.monotonic() - started, 1)}
        (folder / METRICS).write_text(json.dumps(metrics, ensure_ascii=False, indent=2) + "\n", "utf-8")
        result.bundle.save(folder)
        if config.report:
            from training.job.fit_report import report_fit
            from training.reporting.reproducibility import rerun_command

            report_fit(context, data, result, metrics, rerun_command(config))
    logger.info(f"written to {config.out_folder()}")
    return metrics


def _load(context: RunContext) -> Data:
    """Reads, splits and checks the rows."""
    config = context.config
    with context.cost.measure("data"), named(context.scratch):
        data = load_data(config, make_task(config.task, task_section(config)), context.scratch)
    check_same_data(context.folder, data.origins, config.resume)
    check_same_answers(config, data.task, data.labels, data.origins["train"]["name"])
    if context.coordinator.count > 1:
        check_same_rows(context.coordinator, data)
    for line in describe(data):
        logger.info(line)
    return data


def _start_tensorflow(context: RunContext, data: Data) -> None:
    """Imports TensorFlow with the threads for the shards of each batch."""

    def configure() -> None:
        from training.runtime.cpu_sharding import choose_num_shards, configure_shards, intra_op_cores

        tune_malloc()
        shards = 1
        if context.coordinator.count == 1:
            shards = choose_num_shards(context.config, data.task, len(data.train.rows), intra_op_cores())
        configure_shards(shards)

    import_tensorflow(configure)
