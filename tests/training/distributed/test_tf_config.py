import json
import socket
import threading
import time

import pytest

from kmha.errors import InputError
from training.cli.exceptions import WorkerLost
from training.distributed.local_launcher import free_addresses
from training.distributed.tf_config import Cluster, check_port_is_free, parse_tf_config, wait_for_workers

TWO = {"worker": ["a:1", "b:2"]}


def config(cluster=TWO, task: object = None) -> str:
    return json.dumps({"cluster": cluster, "task": task or {"type": "worker", "index": 0}})


@pytest.mark.parametrize("text", [None, "", "  "])
def test_no_tf_config_means_a_single_worker(text):
    assert parse_tf_config(text) is None


def test_worker_indices_start_at_the_chief_worker():
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
        ("[]", 'got no object "cluster"'),
        ("{}", 'got no object "cluster"'),
        (json.dumps({"cluster": TWO}), 'got no object "task"'),
        (config([]), 'got no object "cluster"'),
        (config({"worker": "a:1"}), "expected a list of addresses for 'worker', got 'a:1'"),
        (config({"worker": []}), "expected a list of addresses for 'worker', got []"),
        (config({"worker": ["a"]}), "expected an address host:port, got 'a'"),
        (config({"worker": ["a:0"]}), "expected an address host:port, got 'a:0'"),
        (config({"worker": [1]}), "expected an address host:port, got 1"),
        (config({"worker": ["a:1", "a:1"]}), "expected different addresses of the workers, got a:1 twice"),
        (config({"worker": ["a:1"], "ps": ["b:2"]}), "expected the jobs worker and chief in cluster, got 'ps'"),
        (config({"chief": ["a:1", "b:2"]}, {"type": "chief", "index": 0}), "expected one chief, got 2"),
        (config(task={"type": "evaluator", "index": 0}), "expected the task type worker or chief, got 'evaluator'"),
        (config(task={"type": "ps", "index": 0}), "expected the task type worker or chief, got 'ps'"),
        (config(task={"type": "chief", "index": 0}), "expected a task type of the cluster, got 'chief'"),
        (config(task={"type": "worker", "index": 2}), "expected the index of a worker from 0 to 1, got 2"),
        (config(task={"type": "worker", "index": -1}), "expected the index of a worker from 0 to 1, got -1"),
        (config(task={"type": "worker"}), "expected the index of a worker from 0 to 1, got None"),
    ],
)  # fmt: skip
def test_malformed_tf_config_is_refused(text, message):
    with pytest.raises(InputError) as caught:
        parse_tf_config(text)
    assert str(caught.value).startswith("TF_CONFIG: ") and message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_port_in_use_is_refused():
    with socket.create_server(("", 0)) as taken:
        address = f"localhost:{taken.getsockname()[1]}"
        with pytest.raises(InputError, match=f"expected a free port for worker 1, got {address}"):
            check_port_is_free(Cluster(("localhost:1", address), 1))
    check_port_is_free(Cluster(("localhost:1", address), 1))


def meetings(clusters: list[Cluster], pauses: list[float], seconds: float = 20.0) -> list[object]:
    """The results of several workers, which run as threads that start after a delay."""
    ends: list[object] = [None] * len(clusters)

    def come(place: int) -> None:
        time.sleep(pauses[place])
        try:
            wait_for_workers(clusters[place], seconds)
            ends[place] = time.monotonic()
        except (WorkerLost, InputError) as error:
            ends[place] = error

    threads = [threading.Thread(target=come, args=(place,)) for place in range(len(clusters))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ends


@pytest.mark.parametrize("pauses", [[0, 0.6, 0.3], [0.8, 0, 0.2]])
def test_workers_continue_when_all_are_connected(pauses):
    addresses, started = tuple(free_addresses(3)), time.monotonic()
    ends = meetings([Cluster(addresses, index) for index in range(3)], pauses)
    assert all(isinstance(end, float) and end >= started + max(pauses) for end in ends), ends
    # The address is free for TensorFlow at once.
    socket.create_server(("", int(addresses[0].split(":")[1]))).close()


def test_missing_workers_are_named():
    addresses = tuple(free_addresses(4))
    ends = meetings([Cluster(addresses, 0), Cluster(addresses, 2)], [0, 0], 1.0)
    assert str(ends[0]) == "worker 1, 3 did not connect within 1 seconds"
    (alone,) = meetings([Cluster(addresses, 1)], [0], 1.0)
    assert str(alone) == f"worker 0 did not listen at {addresses[0]} in time"


def test_different_addresses_are_refused_on_both_sides():
    addresses = tuple(free_addresses(2))
    ends = meetings([Cluster(addresses, 0), Cluster((*addresses, "other:1"), 1)], [0, 0])
    assert all(isinstance(end, InputError) for end in ends)
    assert all("got others on worker 1 than on worker 0" in str(end) for end in ends)


def test_other_connections_and_restarted_workers_are_handled():
    addresses = tuple(free_addresses(2))
    host, port = addresses[0].split(":")

    def stranger() -> None:
        for words in (b"GET / HTTP/1.1\r\n\r\n", b'{"index": 1}\n', b""):
            time.sleep(0.2)
            with socket.create_connection((host, int(port)), 5) as connection:
                connection.sendall(words)

    threading.Thread(target=stranger).start()
    ends = meetings([Cluster(addresses, 0), Cluster(addresses, 1)], [0, 1.0])
    assert all(isinstance(end, float) for end in ends), ends
