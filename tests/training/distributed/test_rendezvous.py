import socket
import threading
import time

import pytest

from kmha.errors import InputError
from training.cli.exceptions import WorkerLost
from training.distributed.local_launcher import free_addresses
from training.distributed.tf_config import Cluster, wait_for_workers


def meetings(clusters: list[Cluster], pauses: list[float], seconds: float = 20.0) -> list[object]:
    """What each of several workers comes to, as threads that begin after a while."""
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
def test_all_go_on_when_the_last_has_come(pauses):
    addresses, started = tuple(free_addresses(3)), time.monotonic()
    ends = meetings([Cluster(addresses, index) for index in range(3)], pauses)
    assert all(isinstance(end, float) and end >= started + max(pauses) for end in ends), ends
    # The address is free for TensorFlow at once.
    socket.create_server(("", int(addresses[0].split(":")[1]))).close()


def test_who_does_not_come_is_named():
    addresses = tuple(free_addresses(4))
    ends = meetings([Cluster(addresses, 0), Cluster(addresses, 2)], [0, 0], 1.0)
    assert str(ends[0]) == "worker 1, 3 did not come within 1 seconds"
    (alone,) = meetings([Cluster(addresses, 1)], [0], 1.0)
    assert str(alone) == f"worker 0 did not come to {addresses[0]} in time"


def test_workers_that_were_told_of_others_are_refused_on_both_sides():
    addresses = tuple(free_addresses(2))
    ends = meetings([Cluster(addresses, 0), Cluster((*addresses, "other:1"), 1)], [0, 0])
    assert all(isinstance(end, InputError) for end in ends)
    assert all("given others to worker 1 than to worker 0" in str(end) for end in ends)


def test_strangers_and_those_that_come_twice_do_no_harm():
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
