"""Splits each batch into shards that the CPU cores compute in parallel, each with few threads per operation.

Threads that share one small operation spend much of the time waiting for each other. On two cores, two shards with one
thread each take .74 to .82 of the time of the whole batch (docs/results-appendix.md).
"""

import contextlib
import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from training.config.config import FitConfig, TrainSection
from training.runtime.resource_usage import available_cores
from training.runtime.traced import trace_once
from training.tasks.protocol import Task

# More shards need more memory for their gradients; more than two were not measured.
MAX_SHARDS = 4
# Each shard is traced, which takes longer than it saves on fewer training rows.
MIN_ROWS = 2000
# With fewer rows per shard, at the maximum text length, some cores would often be idle.
_MIN_SHARD_ROWS = 2


def choose_num_shards(config: FitConfig, task: Task, rows: int | None, cores: int) -> int:
    """Number of shards of each training batch; 1 where all cores should compute each operation together.

    `rows` None: a model is trained from few labels. Its encoder is traced once for all shards.
    """
    if not can_shard(config, task):
        return 1
    if rows is None:
        has_whole_batches = task.traits.num_texts == 2 or config.classify.window
        return 1 if has_whole_batches else min(cores, MAX_SHARDS)
    if rows < MIN_ROWS:
        return 1
    return max_shards(config.train, config.text.longest * task.traits.num_texts, cores)


def can_shard(config: FitConfig, task: Task) -> bool:
    """Whether the loss of each row is independent of the others, and the CPU computes it without XLA."""
    if task.traits.needs_whole_batches or config.strategy == "mirrored" or config.train.jit == "on":
        return False
    return not tf.config.list_physical_devices("GPU")


def max_shards(settings: TrainSection, max_tokens: int, cores: int) -> int:
    """Number of shards that batches have enough rows for."""
    rows = settings.batch_tokens // max_tokens
    if settings.batch_rows is not None:
        rows = min(rows, settings.batch_rows)
    return max(1, min(cores, MAX_SHARDS, rows // _MIN_SHARD_ROWS))


def intra_op_cores() -> int:
    """Number of cores that an operation of this process may use."""
    limit = os.environ.get("TF_NUM_INTRAOP_THREADS", "")
    available = available_cores()
    return min(int(limit), available) if limit.isdigit() and int(limit) else available


def configure_shards(shards: int) -> None:
    """Starts TensorFlow with so few threads per operation that each shard has its own cores.

    If TensorFlow has started already, its threads stay as they are and `num_shards` is 1.
    """
    if shards > 1:
        with contextlib.suppress(RuntimeError):
            tf.config.threading.set_intra_op_parallelism_threads(-(-intra_op_cores() // shards))
    tf.constant(0)


def num_shards() -> int:
    """Number of shards per batch in this process: that of `configure_shards`, else 1."""
    threads = tf.config.threading.get_intra_op_parallelism_threads()
    return max(1, intra_op_cores() // threads) if threads else 1


def run_sharded(function: Callable[[Any], Any], features: Any) -> Any:
    """Applies a function of rows to each shard of features [B, …] and concatenates the results; call it in a graph."""
    count = num_shards()
    if count == 1:
        return function(features)
    rows = tf.shape(tf.nest.flatten(features)[0])[0]
    size = (rows + count - 1) // count
    results = []
    for shard in range(count):
        # Some operations refuse empty tensors: a shard past the last row computes the last row again.
        begin = tf.minimum(shard * size, rows - 1)
        part = function(tf.nest.map_structure(lambda x, a=begin, b=(shard + 1) * size: x[a:b], features))
        results.append(tf.nest.map_structure(lambda x, skip=shard * size - begin: x[skip:], part))
    return tf.nest.map_structure(lambda *parts: tf.concat(parts, axis=0), *results)


def sharded_predict_function(model: Any) -> Callable[[Any], Any]:
    """The outputs of a model for features of any batch size, as one graph that computes the shards in parallel."""
    return trace_once(lambda features: run_sharded(lambda part: model(part, training=False), features))
