"""What TensorFlow says when another worker has ended, in words of ours."""

import re

import tensorflow as tf

from kmha.errors import InputError
from training.outcomes import Stopped, WorkerLost
from training.workers.cluster import Cluster

INPUT, INTERRUPT, FAILURE = "input", "interrupt", "failure"
_ABORTS = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)
_REPORT = re.compile(r"\[kmha (\w+)\] (.*?) \[end\]", re.DOTALL)
_TASK = re.compile(r"/job:(\w+)/(?:replica:\d+/)?task:(\d+)")


def is_lost(error: BaseException) -> bool:
    """Whether an error comes of another worker's end."""
    return isinstance(error, _ABORTS) or "Collective ops is aborted" in str(error)


def said(index: int, message: str) -> Exception:
    """What to raise on a worker for what another one reported, or what is known of its end.

    Args:
        index: Of the other worker.
        message: As the coordination service has it.
    """
    report = _REPORT.search(message)
    if report is None:
        return WorkerLost(f"worker {index} is gone")
    kind, words = report.groups()
    if kind == INPUT:
        # What all workers were compared in names the worker by itself.
        return InputError(words if words.startswith("worker ") else f"worker {index}: {words}")
    if kind == INTERRUPT:
        return Stopped(f"an interrupt of worker {index}")
    return WorkerLost(f"worker {index} failed: {words}")


def report_of(message: str, cluster: Cluster) -> Exception:
    """What to raise for a collective that ended, by the message of its error."""
    # The last task named is the remote one; graphs before it may name this one.
    named = [cluster.index_of(job, int(task)) for job, task in _TASK.findall(message)]
    others = [index for index in named if index != cluster.index]
    if not others:
        return WorkerLost("another worker is gone")
    return said(others[-1], message)
