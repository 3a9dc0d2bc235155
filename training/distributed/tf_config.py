"""Reads TF_CONFIG, the workers of a job and the index of this process, and waits until all workers have started."""

import contextlib
import dataclasses
import json
import socket
import time
from typing import Any

from kmha.errors import InputError
from training.cli.exceptions import WorkerLost

TF_CONFIG = "TF_CONFIG"
CHIEF, WORKER = "chief", "worker"
_FORM = '{"cluster": {"worker": ["host:port", …]}, "task": {"type": "worker", "index": 0}}'
# Time for all workers to start: a cluster may have to allocate machines and fetch images.
GATHER_SECONDS = 600.0
_TRY_SECONDS = 0.5
_HELLO_SECONDS = 5.0
_LONGEST_HELLO = 1 << 20
_GO, _DIFFERS = b"go\n", b"differs\n"


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The workers of a job and the index of this process."""

    addresses: tuple[str, ...]  # "host:port" of each worker, the chief worker first
    index: int  # 0 is the chief worker
    has_chief_job: bool = False  # whether the task type of the first worker is "chief" and not "worker"

    @property
    def count(self) -> int:
        """Number of workers, including the chief worker."""
        return len(self.addresses)

    @property
    def jobs(self) -> list[tuple[str, int]]:
        """Task types in the order of the addresses, each with its number of tasks."""
        if not self.has_chief_job:
            return [(WORKER, self.count)]
        return [(CHIEF, 1)] + ([(WORKER, self.count - 1)] if self.count > 1 else [])

    def index_of(self, job: str, task: int) -> int:
        """The worker index of a task of TensorFlow."""
        return task + int(self.has_chief_job and job == WORKER)


def parse_tf_config(text: str | None) -> Cluster | None:
    """Parses TF_CONFIG; None if this process trains alone. InputError if it is malformed or lacks this process."""
    if not (text or "").strip():
        return None
    try:
        value = json.loads(str(text))
    except ValueError as error:
        raise InputError(f"{TF_CONFIG}: expected JSON, got {str(text)[:60]!r} ({error})") from None
    for part in ("cluster", "task"):
        if not isinstance(value, dict) or not isinstance(value.get(part), dict):
            raise InputError(f'{TF_CONFIG}: expected {_FORM}, got no object "{part}"')
    addresses = _addresses(value["cluster"])
    job, number = _task(value["task"], addresses)
    cluster = Cluster(
        (*addresses.get(CHIEF, ()), *addresses.get(WORKER, ())), 0, has_chief_job=CHIEF in addresses
    )
    return dataclasses.replace(cluster, index=cluster.index_of(job, number))


def _addresses(jobs: dict[str, Any]) -> dict[str, list[str]]:
    for job, addresses in jobs.items():
        if job not in (CHIEF, WORKER):
            raise InputError(f"{TF_CONFIG}: expected the jobs worker and chief in cluster, got {job!r}")
        if not isinstance(addresses, list) or not addresses:
            raise InputError(f"{TF_CONFIG}: expected a list of addresses for {job!r}, got {addresses!r}")
        for address in addresses:
            port_of(address)
    if len(jobs.get(CHIEF, [])) > 1:
        raise InputError(f"{TF_CONFIG}: expected one chief, got {len(jobs[CHIEF])}")
    every = [address for addresses in jobs.values() for address in addresses]
    if repeated := next((address for address in every if every.count(address) > 1), None):
        raise InputError(f"{TF_CONFIG}: expected different addresses of the workers, got {repeated} twice")
    return jobs


def _task(task: dict[str, Any], addresses: dict[str, list[str]]) -> tuple[str, int]:
    job, number = task.get("type"), task.get("index")
    if job not in (CHIEF, WORKER):
        raise InputError(f"{TF_CONFIG}: expected the task type worker or chief, got {job!r}")
    if job not in addresses:
        raise InputError(f"{TF_CONFIG}: expected a task type of the cluster, got {job!r}")
    count = len(addresses[job])
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < count:
        raise InputError(f"{TF_CONFIG}: expected the index of a {job} from 0 to {count - 1}, got {number!r}")
    return job, number


def port_of(address: Any) -> int:
    """The port of "host:port"; raises InputError if the address has another form."""
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    if not host or not port.isascii() or not port.isdigit() or not 1 <= int(port) <= 65535:
        raise InputError(f"{TF_CONFIG}: expected an address host:port, got {address!r}")
    return int(port)


def check_port_is_free(cluster: Cluster) -> None:
    """Checks that this worker can listen at its address; raises InputError if not."""
    address = cluster.addresses[cluster.index]
    try:
        with socket.create_server(("", port_of(address))):
            pass
    except OSError as error:
        raise InputError(
            f"{TF_CONFIG}: expected a free port for worker {cluster.index}, got {address}: {error.strerror}"
        ) from None


def wait_for_workers(cluster: Cluster, seconds: float = GATHER_SECONDS) -> None:
    """Waits until all workers have connected to the chief worker.

    Raises WorkerLost if one did not connect in time, InputError if its TF_CONFIG has other addresses.
    """
    end = time.monotonic() + seconds
    if cluster.index:
        _connect_to_chief(cluster, end)
        return
    connections: dict[int, socket.socket] = {}
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(_listening(port_of(cluster.addresses[0])))
        while missing := sorted({*range(1, cluster.count)} - {*connections}):
            if time.monotonic() > end:
                names = ", ".join(map(str, missing))
                raise WorkerLost(f"worker {names} did not connect within {seconds:.0f} seconds")
            hello, connection = _accept(server, stack)
            if connection is None:
                continue
            if hello["addresses"] != list(cluster.addresses):
                for other in (*connections.values(), connection):
                    _reply(other, _DIFFERS)
                raise _differs(hello["index"], cluster)
            # A worker that connects again was restarted: only the last connection is open.
            connections[hello["index"]] = connection
        for connection in connections.values():
            _reply(connection, _GO)


def _accept(
    server: socket.socket, stack: contextlib.ExitStack
) -> tuple[dict[str, Any], socket.socket | None]:
    """Index and addresses of the next worker that connects; ({}, None) after a timeout or for another program."""
    with contextlib.suppress(OSError, ValueError):
        connection = stack.enter_context(server.accept()[0])
        connection.settimeout(_HELLO_SECONDS)
        hello = json.loads(_read_line(connection))
        if isinstance(hello, dict) and {*hello} == {"index", "addresses"}:
            return hello, connection
    return {}, None


def _reply(connection: socket.socket, word: bytes) -> None:
    # A worker that closed the connection connects again, or the collectives miss it later.
    with contextlib.suppress(OSError):
        connection.sendall(word)


def _connect_to_chief(cluster: Cluster, end: float) -> None:
    host, _, port = cluster.addresses[0].rpartition(":")
    hello = (
        json.dumps({"index": cluster.index, "addresses": cluster.addresses}, allow_nan=False).encode() + b"\n"
    )
    while time.monotonic() < end:
        with (
            contextlib.suppress(OSError),
            socket.create_connection((host.strip("[]"), int(port)), _HELLO_SECONDS) as connection,
        ):
            connection.sendall(hello)
            connection.settimeout(max(end - time.monotonic(), _TRY_SECONDS))
            reply = _read_line(connection)
            if reply == _GO:
                return
            if reply == _DIFFERS:
                raise _differs(cluster.index, cluster)
        time.sleep(_TRY_SECONDS)
    raise WorkerLost(f"worker 0 did not listen at {cluster.addresses[0]} in time")


def _read_line(connection: socket.socket) -> bytes:
    """One line, or what there is of it at the end of the stream."""
    with connection.makefile("rb") as lines:
        return lines.readline(_LONGEST_HELLO)


def _listening(port: int) -> socket.socket:
    has_ipv6 = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if has_ipv6 else socket.AF_INET
    server = socket.create_server(("", port), family=family, dualstack_ipv6=has_ipv6)
    server.settimeout(_TRY_SECONDS)
    return server


def _differs(index: int, cluster: Cluster) -> InputError:
    return InputError(
        f"{TF_CONFIG}: expected the same addresses on all workers, got others on worker {index} than on worker 0"
        f" ({', '.join(cluster.addresses)})"
    )
