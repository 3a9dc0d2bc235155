import json
import socket

import pytest

from kmha.errors import InputError
from training.distributed.tf_config import Cluster, check_port_is_free, parse_tf_config

TWO = {"worker": ["a:1", "b:2"]}


def config(cluster=TWO, task: object = None) -> str:
    return json.dumps({"cluster": cluster, "task": task or {"type": "worker", "index": 0}})


@pytest.mark.parametrize("text", [None, "", "  "])
def test_without_it_a_process_trains_alone(text):
    assert parse_tf_config(text) is None


def test_workers_are_numbered_from_the_chief_on():
    assert parse_tf_config(config(task={"type": "worker", "index": 1})) == Cluster(("a:1", "b:2"), 1)
    jobs = {"worker": ["b:2", "c:3"], "chief": ["a:1"]}
    last = parse_tf_config(config(jobs, {"type": "worker", "index": 1}))
    assert last == Cluster(("a:1", "b:2", "c:3"), 2, has_chief_job=True)
    assert last is not None and last.jobs == [("chief", 1), ("worker", 2)] and last.count == 3
    assert parse_tf_config(config(jobs, {"type": "chief", "index": 0})) == Cluster(
        ("a:1", "b:2", "c:3"), 0, has_chief_job=True
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("worker", "expected JSON, got 'worker'"),
        ("[]", 'given none of "cluster"'),
        ("{}", 'given none of "cluster"'),
        (json.dumps({"cluster": TWO}), 'given none of "task"'),
        (config([]), 'given none of "cluster"'),
        (config({"worker": "a:1"}), "expected a list of addresses for 'worker', got 'a:1'"),
        (config({"worker": []}), "expected a list of addresses for 'worker', got []"),
        (config({"worker": ["a"]}), "expected an address host:port, got 'a'"),
        (config({"worker": ["a:0"]}), "expected an address host:port, got 'a:0'"),
        (config({"worker": [1]}), "expected an address host:port, got 1"),
        (config({"worker": ["a:1", "a:1"]}), "expected an address of its own for each worker, got a:1 twice"),
        (config({"worker": ["a:1"], "ps": ["b:2"]}), "expected workers, and perhaps a chief, in cluster, got 'ps'"),
        (config({"chief": ["a:1", "b:2"]}, {"type": "chief", "index": 0}), "expected one chief, got 2"),
        (config(task={"type": "evaluator", "index": 0}), "expected the task type worker or chief, got 'evaluator'"),
        (config(task={"type": "ps", "index": 0}), "expected the task type worker or chief, got 'ps'"),
        (config(task={"type": "chief", "index": 0}), "expected a task of the cluster, got 'chief'"),
        (config(task={"type": "worker", "index": 2}), "expected the index of a worker from 0 to 1, got 2"),
        (config(task={"type": "worker", "index": -1}), "expected the index of a worker from 0 to 1, got -1"),
        (config(task={"type": "worker"}), "expected the index of a worker from 0 to 1, got None"),
    ],
)  # fmt: skip
def test_what_is_malformed_is_told_in_one_line(text, message):
    with pytest.raises(InputError) as told:
        parse_tf_config(text)
    assert str(told.value).startswith("TF_CONFIG: ") and message in str(told.value)
    assert "\n" not in str(told.value)


def test_a_port_that_is_taken_is_refused():
    with socket.create_server(("", 0)) as taken:
        address = f"localhost:{taken.getsockname()[1]}"
        with pytest.raises(InputError, match=f"expected a free port for worker 1, got {address}"):
            check_port_is_free(Cluster(("localhost:1", address), 1))
    check_port_is_free(Cluster(("localhost:1", address), 1))
