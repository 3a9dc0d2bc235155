"""One training job, from settings to a run folder. What can be refused is refused before TensorFlow loads."""

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
from training.data.load import describe, load_data
from training.distributed.coordinator import Coordinator
from training.engine.consistency import check_same_rows, check_same_settings
from training.io.scratch_folder import named, scratch_folder
from training.job.join_cluster import join_cluster, worker_config, worker_folder
from training.runs.run_folder import METRICS, check_same_data
from training.runtime.malloc_tuning import tune_malloc
from training.runtime.resource_usage import Cost
from training.tasks.create import make_task

logger = logging.getLogger("kmha")


def fit(config: FitConfig) -> dict[str, Any] | None:
    """Trains, judges and writes the run folder; with other workers, if TF_CONFIG names them.

    Args:
        config: All settings.

    Returns:
        What metrics.json holds; None on a worker that is not the chief, which leaves when the run is written.

    Raises:
        InputError: Wrong settings or data; nothing is left behind but the checkpoint of an earlier run.
        Interrupted: Told to stop; a checkpoint is kept for --resume.
        TrainingDiverged: The loss left the numbers.
        CheckpointWriteError: A checkpoint could not be written; those before it stand.
        WorkerLost: Another worker is gone.
    """
    config = resolve_config(config)
    with join_cluster(config) as coordinator:
        check_settings(config)
        if coordinator.count > 1:
            check_same_settings(coordinator, config, len(coordinator.strategy.extended.worker_devices))
        config = worker_config(config, coordinator)
        metrics = None
        with contextlib.suppress(NotChief):
            metrics = _fit(config, coordinator)
        # Nobody leaves before the run is in its place: then all leave with the same status.
        coordinator.broadcast("end", lambda: None)
    return metrics


def _fit(config: ResolvedConfig, coordinator: Coordinator) -> dict[str, Any]:
    with worker_folder(config, coordinator) as folder, scratch_folder(folder) as scratch:
        started, cost = time.monotonic(), Cost()
        with cost.measure("data"), named(scratch):
            data = load_data(config, make_task(config.task, task_section(config)), scratch)
        check_same_data(folder, data.origins, config.resume)
        check_same_answers(config, data.task, data.labels, data.origins["train"]["name"])
        if coordinator.count > 1:
            check_same_rows(coordinator, data)
        for line in describe(data):
            logger.info(line)

        def start() -> None:
            from training.runtime.cpu_sharding import choose_num_shards, configure_shards, intra_op_cores

            tune_malloc()
            alone = coordinator.count == 1
            configure_shards(
                choose_num_shards(config, data.task, len(data.train.rows), intra_op_cores()) if alone else 1
            )

        import_tensorflow(start)
        from training.job.train_and_evaluate import train_and_evaluate

        fit_result = train_and_evaluate(config, data, scratch, folder, cost, coordinator=coordinator)
        metrics = {**fit_result.metrics, "seconds": round(time.monotonic() - started, 1)}
        (folder / METRICS).write_text(json.dumps(metrics, ensure_ascii=False, indent=2) + "\n", "utf-8")
        fit_result.bundle.save(folder)
        if config.report:
            from training.job.fit_report import report_fit
            from training.reporting.reproducibility import rerun_command

            report_fit(config, data, fit_result, metrics, folder, rerun_command(config))
    logger.info(f"written to {config.out_folder()}")
    return metrics
