"""Coordinates several workers: TensorFlow's collectives for tensors, its coordination service for JSON values.

The coordination service detects lost workers by their heartbeats and sends an error that one worker reports to all.
The calls of the other workers then end with an error.
"""

import contextlib
import itertools
import json
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

# TensorFlow has no public API for its coordination service.
from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2  # pyright: ignore
from tensorflow.python.eager import context  # pyright: ignore

from kmha.errors import InputError
from training.cli.exceptions import Interrupted, TrainingDiverged, WorkerLost
from training.distributed.coordinator import Coordinator
from training.distributed.tf_config import Cluster

# A worker is lost after so long without a heartbeat; TensorFlow's default is 10.
HEARTBEAT_SECONDS = 5
# All workers have started by then.
CONNECT_SECONDS = 60
LEAVE_SECONDS = 5
SIGNAL_SECONDS = 1.0  # time between two exchanges of signals
MAX_SIGNAL_BATCHES = 200
POLL_MS = 500
CHUNK_BYTES = 1 << 24
SIGNALS = (signal.SIGINT, signal.SIGTERM)
SMALL_TYPES = (tf.int8, tf.uint8, tf.int16, tf.uint16)
SUM = tf.distribute.ReduceOp.SUM

INPUT, INTERRUPT, FAILURE = "input", "interrupt", "failure"
_ABORTS = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)
_REPORT = re.compile(r"\[kmha (\w+)\] (.*?) \[end\]", re.DOTALL)
_TASK = re.compile(r"/job:(\w+)/(?:replica:\d+/)?task:(\d+)")


class MultiWorkerCoordinator(Coordinator):
    """Connects this worker to the others; its address must be free. Raises WorkerLost without the chief worker."""

    def __init__(self, cluster: Cluster):
        self.cluster, self.index, self.count = cluster, cluster.index, cluster.count
        jobs = [
            coordination_config_pb2.CoordinatedJob(name=job, num_tasks=tasks) for job, tasks in cluster.jobs
        ]
        context.context().configure_coordination_service(
            service_type="standalone",
            service_leader=f"/job:{cluster.jobs[0][0]}/replica:0/task:0",
            cluster_register_timeout_in_ms=CONNECT_SECONDS * 1000,
            heartbeat_timeout_in_ms=HEARTBEAT_SECONDS * 1000,
            shutdown_barrier_timeout_in_ms=LEAVE_SECONDS * 1000,
            coordinated_jobs=jobs,
        )
        try:
            self.strategy = tf.distribute.MultiWorkerMirroredStrategy()
        except tf.errors.OpError as error:
            reason = str(error.message).splitlines()[0]
            raise WorkerLost(
                f"worker {self.index} could not connect to worker 0 at {cluster.addresses[0]}: {reason}"
            ) from error
        _broadcast_small_integers(self.strategy.extended)
        self._calls: Counter[str] = Counter()
        self._signals: list[int] = []
        # Time of the last exchange of signals, batches between two exchanges, batches to the next one.
        self._exchanged, self._interval, self._left = time.monotonic(), 1, 1
        self._sums = tf.function(
            self._summed, input_signature=[tf.TensorSpec([None], tf.int32)], autograph=False
        )

    def broadcast(self, what: str, make: Callable[[], Any]) -> Any:
        """See `Coordinator`."""
        key = self._key(what)
        if not self.is_chief:
            return self._get(f"{key}/0")
        value = make()
        self._put(f"{key}/0", value)
        return value

    def all_gather(self, what: str, value: Any) -> list[Any]:
        """See `Coordinator`."""
        key = self._key(what)
        self._put(f"{key}/{self.index}", value)
        return [self._get(f"{key}/{index}") for index in range(self.count)]

    def any_signaled(self, signals: Sequence[int], now: bool = False) -> list[int]:
        """See `Coordinator`."""
        self._left -= 1
        if not self._signals and (now or self._left <= 0):
            # The chief worker sets the number of batches to the next exchange, so that it is the same on all workers.
            current, batches = time.monotonic(), max(1, self._interval - self._left)
            due = round(batches * SIGNAL_SECONDS / max(current - self._exchanged, 1e-6))
            received = [int(number in signals) for number in SIGNALS]
            own = [*received, min(max(due, 1), MAX_SIGNAL_BATCHES) if self.is_chief else 0]
            *counts, self._interval = self._sum(np.array(own, np.int32)).tolist()
            self._exchanged, self._left = current, self._interval
            self._signals = [number for number, count in zip(SIGNALS, counts, strict=True) if count]
        return self._signals

    def copy_from_chief(self, folder: Path) -> None:
        """See `Coordinator`."""
        files = (path for path in sorted(folder.rglob("*")) if path.is_file())
        sizes = self.broadcast(
            f"files of {folder.name}",
            lambda: {path.relative_to(folder).as_posix(): path.stat().st_size for path in files},
        )
        for name, size in sizes.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            with open(folder / name, "rb" if self.is_chief else "wb") as file:
                for first in range(0, size, CHUNK_BYTES):
                    length = min(CHUNK_BYTES, size - first)
                    # The sum of the chief worker's bytes and zeros.
                    data = file.read(length) if self.is_chief else bytes(length)
                    numbers = self._sum(np.frombuffer(data + bytes(-length % 4), np.int32))
                    if not self.is_chief:
                        file.write(numbers.tobytes()[:length])

    def cause(self, error: BaseException) -> Exception | None:
        """The exception for an error that another worker's end caused; None for other errors."""
        if not is_lost_worker_error(error):
            return None
        for index, message in self._ended_workers():
            return reported_error(index, message)
        return collective_error(str(error), self.cluster)

    def report(self, kind: str, message: str) -> None:
        """Reports to the other workers why this one ends."""
        with contextlib.suppress(tf.errors.OpError):
            code = tf.errors.INVALID_ARGUMENT if kind == INPUT else tf.errors.ABORTED
            context.context().report_error_to_cluster(code, f"[kmha {kind}] {message} [end]")
            if self.is_chief:
                # The coordination service runs here: the others still have to query it.
                time.sleep(3 * POLL_MS / 1000)

    def _summed(self, numbers):
        def replica_sum():
            first = tf.distribute.get_replica_context().replica_id_in_sync_group % replicas == 0
            own = numbers * tf.cast(first, tf.int32)
            return tf.distribute.get_replica_context().all_reduce(SUM, own)

        replicas = self.strategy.num_replicas_in_sync // self.count
        return self.strategy.experimental_local_results(self.strategy.run(replica_sum))[0]

    def _sum(self, numbers: np.ndarray) -> np.ndarray:
        return self._sums(tf.constant(numbers, tf.int32)).numpy()

    def _key(self, what: str) -> str:
        self._calls[what] += 1
        return f"kmha/{what}/{self._calls[what]}"

    def _put(self, key: str, value: Any) -> None:
        # Read only by other workers; a loss may be NaN.
        context.context().set_config_key_value(key, json.dumps(value, allow_nan=True))

    def _get(self, key: str) -> Any:
        # Short timeouts: signals are handled and ended workers noticed in between.
        while True:
            try:
                return json.loads(context.context().get_config_key_value(key, POLL_MS))
            except tf.errors.DeadlineExceededError:
                for index, message in self._ended_workers():
                    raise reported_error(index, message) from None

    def _ended_workers(self) -> Iterator[tuple[int, str]]:
        """Index and message of each other worker that has ended."""
        jobs = self.cluster.jobs
        tasks = itertools.chain.from_iterable(((job, task) for task in range(tasks)) for job, tasks in jobs)
        try:
            states = context.context().get_task_states(jobs)
        except tf.errors.OpError:
            return
        for (job, task), state in zip(tasks, states, strict=True):
            index = self.cluster.index_of(job, task)
            if state is not None and index != self.index:
                yield index, str(getattr(state, "message", state))


@contextlib.contextmanager
def propagate_failures(coordinator: MultiWorkerCoordinator) -> Iterator[None]:
    """An exception inside the block ends all workers; on the others it is a WorkerLost, InputError or Interrupted."""
    try:
        yield
    except (Interrupted, TrainingDiverged, WorkerLost):
        raise  # all workers raise these
    except tf.errors.OpError as error:
        if other := coordinator.cause(error):
            raise other from error
        coordinator.report(FAILURE, str(error).splitlines()[0])
        raise
    except InputError as error:
        coordinator.report(INPUT, str(error))
        raise
    except KeyboardInterrupt:
        coordinator.report(INTERRUPT, "interrupted")
        raise
    except Exception as error:
        coordinator.report(FAILURE, f"{type(error).__name__}: {error}")
        raise


def is_lost_worker_error(error: BaseException) -> bool:
    """Whether another worker's end caused an error."""
    return isinstance(error, _ABORTS) or "Collective ops is aborted" in str(error)


def reported_error(index: int, message: str) -> Exception:
    """The exception for an error that another worker reported, or for its unexplained end."""
    report = _REPORT.search(message)
    if report is None:
        return WorkerLost(f"worker {index} is gone")
    kind, reason = report.groups()
    if kind == INPUT:
        # Messages of `training.engine.consistency` have the worker already.
        return InputError(reason if reason.startswith("worker ") else f"worker {index}: {reason}")
    if kind == INTERRUPT:
        return Interrupted(f"an interrupt of worker {index}")
    return WorkerLost(f"worker {index} failed: {reason}")


def collective_error(message: str, cluster: Cluster) -> Exception:
    """The exception for a collective that failed, from the message of its error."""
    # The last task in the message is the remote one; earlier ones may be this worker.
    indices = [cluster.index_of(job, int(task)) for job, task in _TASK.findall(message)]
    others = [index for index in indices if index != cluster.index]
    if not others:
        return WorkerLost("another worker is gone")
    return reported_error(others[-1], message)


def _broadcast_small_integers(extended: Any) -> None:
    """Initializes variables of small integer types through int32: TensorFlow cannot broadcast these types."""
    original = extended._get_variable_creator_initial_value

    def initial_value(replica_id, device, primary_var, **kwargs):
        dtype = kwargs.get("dtype")
        value = kwargs["initial_value"]
        make: Any = value if callable(value) else lambda: value
        if dtype is None or tf.as_dtype(dtype) not in SMALL_TYPES:
            return original(replica_id=replica_id, device=device, primary_var=primary_var, **kwargs)
        kwargs |= {
            "initial_value": lambda: tf.cast(tf.convert_to_tensor(make()), tf.int32),
            "dtype": tf.int32,
        }
        wide = original(replica_id=replica_id, device=device, primary_var=primary_var, **kwargs)
        return lambda: tf.cast(wide(), dtype)

    extended._get_variable_creator_initial_value = initial_value
