import pytest
import tensorflow as tf

from kmha.errors import InputError
from training.cli.exceptions import Interrupted, WorkerLost
from training.distributed.collectives import collective_error, is_lost_worker_error, reported_error
from training.distributed.tf_config import Cluster

OF_ONE = Cluster(("a:1", "b:2", "c:3"), 1)
GONE = """Collective ops is aborted by: Socket closed
Additional GRPC error information from remote target /job:worker/replica:0/task:2 while calling RecvBuf"""


@pytest.mark.parametrize(
    ("message", "kind", "words"),
    [
        ("Task /job:worker/replica:0/task:2 heartbeat timeout.", WorkerLost, "worker 2 is gone"),
        ("[kmha input] --data.train x: no such file [end]", InputError, "worker 2: --data.train x: no such file"),
        ("[kmha input] worker 1: expected this [end] more", InputError, "worker 1: expected this"),
        ("[kmha failure] OSError: [Errno 28] full [end]", WorkerLost, "worker 2 failed: OSError: [Errno 28] full"),
        ("[kmha interrupt] interrupted [end]", Interrupted, "an interrupt of worker 2"),
    ],
)  # fmt: skip
def test_error_of_another_worker_is_raised(message, kind, words):
    error = reported_error(2, message)
    assert type(error) is kind and str(error) == words


def test_failed_collective_names_the_lost_worker():
    assert str(collective_error(GONE, OF_ONE)) == "worker 2 is gone"
    reported = "by: Error reported from /job:worker/task:0: [kmha input] --x: expected y [end]"
    assert str(collective_error(reported, OF_ONE)) == "worker 0: --x: expected y"
    assert str(collective_error("/job:worker/task:1 was aborted", OF_ONE)) == "another worker is gone"
    chief = Cluster(("a:1", "b:2"), 0, has_chief_job=True)
    assert str(collective_error("/job:worker/replica:0/task:0", chief)) == "worker 1 is gone"


def test_own_errors_are_not_lost_workers():
    assert is_lost_worker_error(tf.errors.UnavailableError(None, None, "Socket closed"))
    assert is_lost_worker_error(tf.errors.InvalidArgumentError(None, None, "Collective ops is aborted by: x"))
    assert not is_lost_worker_error(tf.errors.ResourceExhaustedError(None, None, "out of memory"))
    assert not is_lost_worker_error(
        tf.errors.InvalidArgumentError(None, None, "indices[0] = 7 is not in [0, 5)")
    )
