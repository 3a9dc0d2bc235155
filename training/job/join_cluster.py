"""Connects a run to the other workers of TF_CONFIG, and gives each worker its settings and its folder."""

import contextlib
import dataclasses
import logging
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from kmha.errors import InputError
from kmha.quiet import import_tensorflow
from training.config.config import FitConfig, ResolvedConfig
from training.distributed.coordinator import SINGLE_WORKER, Coordinator
from training.distributed.tf_config import TF_CONFIG, check_port_is_free, parse_tf_config, wait_for_workers
from training.runs.run_folder import run_folder

logger = logging.getLogger("kmha")


@contextlib.contextmanager
def join_cluster(config: FitConfig) -> Iterator[Coordinator]:
    """Connects the workers. Inside the block only the chief worker writes to stderr.

    Raises:
        InputError: TF_CONFIG or --strategy cannot be used, or an input of another worker.
        WorkerLost: Another worker was lost or did not start.
        Interrupted: Another worker was interrupted.
    """
    cluster = parse_tf_config(os.environ.get(TF_CONFIG))
    if cluster is None or cluster.count == 1:
        yield SINGLE_WORKER
        return
    if config.strategy != "auto":
        raise InputError(
            f"--strategy: expected auto for the {cluster.count} workers of {TF_CONFIG}, got {config.strategy}"
        )
    check_port_is_free(cluster)
    logger.info(f"worker {cluster.index} of {cluster.count} waits for the others")
    wait_for_workers(cluster)
    coordinators = []

    def connect() -> None:
        from training.distributed.collectives import MultiWorkerCoordinator

        coordinators.append(MultiWorkerCoordinator(cluster))

    with _default_signal_handlers():
        import_tensorflow(connect)
    from training.distributed.collectives import propagate_failures

    with propagate_failures(coordinators[0]), _silence_other_workers(coordinators[0]):
        yield coordinators[0]


def worker_config(config: ResolvedConfig, coordinator: Coordinator) -> ResolvedConfig:
    """The settings of this worker: the chief worker decides whether to resume, and alone writes shared files."""
    if coordinator.count == 1:
        return config
    config = dataclasses.replace(config, resume=coordinator.broadcast("resume", lambda: config.resume))
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


@contextlib.contextmanager
def _default_signal_handlers() -> Iterator[None]:
    """Inside, signals end the process at once; Python's handlers would run only after TensorFlow has connected.

    Afterwards Python's handlers are restored, since TensorFlow replaces that of SIGTERM.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
