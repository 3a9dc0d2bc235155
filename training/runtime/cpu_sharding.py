"""The cores share each batch: each computes some of its rows, with as few threads an operation as leave it a core.

Threads that share one small operation wait for one another for much of it; on two cores two halves of a batch, each
with one thread, are computed in .74 to .82 of the time (docs/results-appendix.md, "Training speed").
"""

import contextlib
import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from training.config.config import FitConfig, TrainSection
from training.runtime.resource_usage import available_cores
from training.tasks.protocol import Task

# The sums of the shares' gradients grow with their number; more than two were not measured.
MAX_SHARDS = 4
# Each share is traced: fewer rows are learnt before that pays.
MIN_ROWS = 2000
# Of a share, were all texts as long as they may be: with fewer some cores would often have nothing.
_LEAST_SHARE = 2


def choose_num_shards(config: FitConfig, task: Task, rows: int, cores: int) -> int:
    """Into how many parts to cut each batch of a job; 1 where cores had better compute each operation together.

    Args:
        config: Settings.
        task: What is learnt.
        rows: To train on.
        cores: That may be used.
    """
    if rows < MIN_ROWS or not can_shard(config, task):
        return 1
    return max_shards(config.train, config.text.max_length * task.num_texts, cores)


def can_shard(config: FitConfig, task: Task) -> bool:
    """Whether batches of a job may be cut at all: each row is scored by itself, on the cores, and not in XLA."""
    together = task.whole_batches or config.strategy == "mirrored" or config.train.jit == "on"
    return not together and not tf.config.list_physical_devices("GPU")


def max_shards(settings: TrainSection, longest: int, cores: int) -> int:
    """How many shares batches are large enough for.

    Args:
        settings: How much goes into a batch.
        longest: Tokens of a row at most.
        cores: That may be used.
    """
    rows = settings.batch_tokens // longest
    if settings.batch_rows is not None:
        rows = min(rows, settings.batch_rows)
    return max(1, min(cores, MAX_SHARDS, rows // _LEAST_SHARE))


def intra_op_cores() -> int:
    """How many cores this process may use for an operation."""
    given = os.environ.get("TF_NUM_INTRAOP_THREADS", "")
    available = available_cores()
    return min(int(given), available) if given.isdigit() and int(given) else available


def configure_shards(shares: int) -> None:
    """Starts TensorFlow with so few threads an operation that each share has its own cores.

    Where it computes already its threads stay as they are, and `core_shares` is 1.
    """
    if shares > 1:
        with contextlib.suppress(RuntimeError):
            tf.config.threading.set_intra_op_parallelism_threads(-(-intra_op_cores() // shares))
    tf.constant(0)


def num_shards() -> int:
    """Into how many parts this process cuts batches: as many as `split_cores` was told, else 1."""
    threads = tf.config.threading.get_intra_op_parallelism_threads()
    return max(1, intra_op_cores() // threads) if threads else 1


def run_sharded(ask: Callable[[Any], Any], features: Any) -> Any:
    """What a function of features gives, each share of the rows asked by itself; call it in a graph.

    Args:
        ask: From features to tensors, with a row of results for each row of features.
        features: Tensors [B, …], of one row at least.
    """
    count = num_shards()
    if count == 1:
        return ask(features)
    rows = tf.shape(tf.nest.flatten(features)[0])[0]
    size = (rows + count - 1) // count
    found = []
    for share in range(count):
        # No share is empty, which some operations refuse: those past the last row ask for it once more.
        begin = tf.minimum(share * size, rows - 1)
        part = ask(tf.nest.map_structure(lambda x, a=begin, b=(share + 1) * size: x[a:b], features))
        found.append(tf.nest.map_structure(lambda x, again=share * size - begin: x[again:], part))
    return tf.nest.map_structure(lambda *parts: tf.concat(parts, axis=0), *found)
