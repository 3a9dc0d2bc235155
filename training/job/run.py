"""The pipeline of one training run: resolve settings, load data, train and evaluate, save, report.

Everything that can be checked without TensorFlow is checked before TensorFlow is imported.
"""

import contextlib
import dataclasses
import datetime
import hashlib
import logging
import os
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kmha.errors import InputError
from kmha.quiet import import_tensorflow
from training.cli.exceptions import NotChief, signal_handler
from training.config.config import FitConfig, ResolvedConfig, task_section
from training.config.defaults import resolve_config, resolve_text
from training.config.validation import check_settings, check_teacher_labels
from training.data.load import Data, describe, load_data
from training.data.sources import Source
from training.distributed.coordinator import SINGLE_WORKER, Coordinator
from training.distributed.tf_config import TF_CONFIG, check_port_is_free, parse_tf_config, wait_for_workers
from training.engine.consistency import check_same_rows, check_same_settings
from training.io.disk import named, scratch_folder, to_json
from training.runs.run_folder import HELD_OUT, METRICS, RunContext, check_same_data, run_folder
from training.runtime.resource_usage import tune_malloc
from training.tasks.create import make_task

logger = logging.getLogger("kmha")


def fit(config: FitConfig, in_memory: Mapping[str, Source] | None = None) -> dict[str, Any] | None:
    """Trains, evaluates and writes the run folder; with other workers if TF_CONFIG names them.

    Rows are those of the settings, and of parts that are `in_memory` those of these sources.

    Returns the values of metrics.json; None on workers other than the chief worker.

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
            metrics = _run(worker_config(config, coordinator), coordinator, in_memory)
        # All workers wait until the run is written, and exit with the same status.
        coordinator.broadcast("end", lambda: None)
    return metrics


def _run(
    config: ResolvedConfig, coordinator: Coordinator, in_memory: Mapping[str, Source] | None
) -> dict[str, Any]:
    with worker_folder(config, coordinator) as folder, scratch_folder(folder) as scratch:
        context = RunContext(config, folder, scratch, coordinator)
        started = time.monotonic()
        data = _load(context, in_memory)
        text_bytes = data.train.examples.texts[0].lengths[data.train.rows]
        context.config = resolve_text(context.config, text_bytes)
        _start_tensorflow(context, data)
        from training.job.train_and_evaluate import train_and_evaluate

        result = train_and_evaluate(context, data)
        from training.reporting.data_summary import rerun_command
        from training.reporting.next_steps import next_steps

        command = rerun_command(config, bool(in_memory))
        steps = next_steps(config, result.metrics, result.bundle.sample, bool(in_memory))
        metrics = {**result.metrics, "next": steps, "seconds": round(time.monotonic() - started, 1)}
        (folder / METRICS).write_text(to_json(metrics, indent=2) + "\n", "utf-8")
        date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        result.bundle.details["trained"] = {"date": date, "command": command}
        result.bundle.save(folder)
        if config.report:
            from training.job.train_and_evaluate import report_fit

            report_fit(context, data, result, metrics, command)
    return metrics


def _load(context: RunContext, in_memory: Mapping[str, Source] | None) -> Data:
    config = context.config
    with context.cost.measure("data"), named(context.scratch):
        task = make_task(config.task, task_section(config))
        data = load_data(config, task, context.scratch, in_memory)
    sources = data.origins
    if data.summary.near_copies:
        # Earlier versions held out other rows, and recorded no digest of them.
        sources = sources | {HELD_OUT: hashlib.sha256(data.validation.rows.tobytes()).hexdigest()}
    check_same_data(context.folder, sources, config.resume)
    check_teacher_labels(config, data.task, data.labels, data.origins["train"]["name"])
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
            rows = None if data.has_few_labels else len(data.train.rows)
            shards = choose_num_shards(context.config, data.task, rows, intra_op_cores())
        configure_shards(shards)

    import_tensorflow(configure)


@contextlib.contextmanager
def join_cluster(config: FitConfig) -> Iterator[Coordinator]:
    """Connects the workers. Inside the block only the chief worker writes to stderr.

    Raises InputError if TF_CONFIG, --strategy or --fewshot cannot be used, and the errors of `propagate_failures`.
    """
    cluster = parse_tf_config(os.environ.get(TF_CONFIG))
    if cluster is None or cluster.count == 1:
        yield SINGLE_WORKER
        return
    if config.strategy != "auto":
        raise InputError(
            f"--strategy: expected auto for the {cluster.count} workers of {TF_CONFIG}, got {config.strategy}"
        )
    if config.fewshot.mode in ("probe", "contrastive"):
        raise InputError(
            f"--fewshot: expected auto or off for the {cluster.count} workers of {TF_CONFIG}, got {config.fewshot.mode}"
        )
    check_port_is_free(cluster)
    logger.info(f"worker {cluster.index} of {cluster.count} waits for the others")
    wait_for_workers(cluster)
    coordinators = []

    def connect() -> None:
        from training.distributed.collectives import MultiWorkerCoordinator

        coordinators.append(MultiWorkerCoordinator(cluster))

    # Signals end the process at once; Python's handlers would run only after TensorFlow has connected. Afterwards they
    # are restored, since TensorFlow replaces that of SIGTERM.
    with signal_handler(signal.SIG_DFL, signal.SIGINT, signal.SIGTERM):
        import_tensorflow(connect)
    from training.distributed.collectives import propagate_failures

    with propagate_failures(coordinators[0]), _silence_other_workers(coordinators[0]):
        yield coordinators[0]


def worker_config(config: ResolvedConfig, coordinator: Coordinator) -> ResolvedConfig:
    """The settings of this worker: the chief worker decides whether to resume, and alone writes shared files."""
    if coordinator.count == 1:
        return config
    config = dataclasses.replace(
        config,
        resume=coordinator.broadcast("resume", lambda: config.resume),
        # Few labels need no second worker, and their loss compares all rows of a batch.
        fewshot=dataclasses.replace(config.fewshot, mode="off"),
    )
    if coordinator.is_chief:
        return config
    return dataclasses.replace(
        config, tensorboard=False, distill=dataclasses.replace(config.distill, cache=None)
    )


@contextlib.contextmanager
def worker_folder(config: FitConfig, coordinator: Coordinator) -> Iterator[Path]:
    """The folder to write into: on the chief worker the run folder, on the others a temporary folder."""
    if coordinator.is_chief:
        with run_folder(config) as folder:
            yield folder
    else:
        with tempfile.TemporaryDirectory(prefix="kmha-worker-") as folder:
            yield Path(folder)


@contextlib.contextmanager
def _silence_other_workers(coordinator: Coordinator) -> Iterator[None]:
    if coordinator.is_chief:
        yield
        return
    with open(os.devnull, "w", encoding="utf-8") as devnull, contextlib.redirect_stderr(devnull):
        yield
