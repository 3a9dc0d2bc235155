"""TF_CONFIG: which workers train together, and which of them this process is."""

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


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The workers of a job and this process's place among them.

    Attributes:
        addresses: "host:port" of each, the chief first.
        index: Of this process among them; 0 is the chief.
        has_chief_job: Whether the first is called "chief" and not "worker".
    """

    addresses: tuple[str, ...]
    index: int
    has_chief_job: bool = False

    @property
    def count(self) -> int:
        """How many workers there are, the chief among them."""
        return len(self.addresses)

    @property
    def jobs(self) -> list[tuple[str, int]]:
        """Task types in the order of the addresses, and how many there are of each."""
        if not self.has_chief_job:
            return [(WORKER, self.count)]
        return [(CHIEF, 1)] + ([(WORKER, self.count - 1)] if self.count > 1 else [])

    def index_of(self, job: str, task: int) -> int:
        """The place of a task, which TensorFlow names by its type and its number."""
        return task + int(self.has_chief_job and job == WORKER)


def parse_tf_config(text: str | None) -> Cluster | None:
    """What TF_CONFIG says.

    Args:
        text: The variable; None or empty where it is not set.

    Returns:
        The cluster; None where this process trains alone.

    Raises:
        InputError: It is malformed, or this process is none of its workers.
    """
    if not (text or "").strip():
        return None
    try:
        given = json.loads(str(text))
    except ValueError as error:
        raise InputError(f"{TF_CONFIG}: expected JSON, got {str(text)[:60]!r} ({error})") from None
    for part in ("cluster", "task"):
        if not isinstance(given, dict) or not isinstance(given.get(part), dict):
            raise InputError(f'{TF_CONFIG}: expected {_FORM}, got none of "{part}" that is an object')
    addresses = _addresses(given["cluster"])
    job, number = _task(given["task"], addresses)
    cluster = Cluster(
        (*addresses.get(CHIEF, ()), *addresses.get(WORKER, ())), 0, has_chief_job=CHIEF in addresses
    )
    return dataclasses.replace(cluster, index=cluster.index_of(job, number))


def _addresses(jobs: dict[str, Any]) -> dict[str, list[str]]:
    """The addresses of each task type."""
    for job, addresses in jobs.items():
        if job not in (CHIEF, WORKER):
            raise InputError(f"{TF_CONFIG}: expected workers, and perhaps a chief, in cluster, got {job!r}")
        if not isinstance(addresses, list) or not addresses:
            raise InputError(f"{TF_CONFIG}: expected a list of addresses for {job!r}, got {addresses!r}")
        for address in addresses:
            port_of(address)
    if len(jobs.get(CHIEF, [])) > 1:
        raise InputError(f"{TF_CONFIG}: expected one chief, got {len(jobs[CHIEF])}")
    every = [address for addresses in jobs.values() for address in addresses]
    if twice := next((address for address in every if every.count(address) > 1), None):
        raise InputError(f"{TF_CONFIG}: expected an address of its own for each worker, got {twice} twice")
    return jobs


def _task(task: dict[str, Any], addresses: dict[str, list[str]]) -> tuple[str, int]:
    """Type and number of this process."""
    job, number = task.get("type"), task.get("index")
    if job not in (CHIEF, WORKER):
        raise InputError(f"{TF_CONFIG}: expected the task type worker or chief, got {job!r}")
    if job not in addresses:
        raise InputError(f"{TF_CONFIG}: expected a task of the cluster, got {job!r}, which it has none of")
    count = len(addresses[job])
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < count:
        raise InputError(f"{TF_CONFIG}: expected the index of a {job} from 0 to {count - 1}, got {number!r}")
    return job, number


def port_of(address: Any) -> int:
    """The port of "host:port"; raises InputError where it is none."""
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    if not host or not port.isascii() or not port.isdigit() or not 1 <= int(port) <= 65535:
        raise InputError(f"{TF_CONFIG}: expected an address host:port, got {address!r}")
    return int(port)


def check_port_is_free(cluster: Cluster) -> None:
    """Refuses an address of this worker that another process listens at, or that the user may not use."""
    address = cluster.addresses[cluster.index]
    try:
        with socket.create_server(("", port_of(address))):
            pass
    except OSError as error:
        raise InputError(
            f"{TF_CONFIG}: expected a free port for worker {cluster.index}, got {address}: {error.strerror}"
        ) from None


# For the last worker to come up: machines may have to be found and images fetched.
GATHER_SECONDS = 600.0
_TRY_SECONDS = 0.5
_HELLO_SECONDS = 5.0
_LONGEST_HELLO = 1 << 20
_GO, _DIFFERS = b"go\n", b"differs\n"


def wait_for_workers(cluster: Cluster, seconds: float = GATHER_SECONDS) -> None:
    """Returns when all workers have come.

    Args:
        cluster: All workers, and which of them this is.
        seconds: How long to wait for them.

    Raises:
        WorkerLost: Some did not come.
        InputError: One was told of other workers.
    """
    end = time.monotonic() + seconds
    if cluster.index:
        _come(cluster, end)
        return
    came: dict[int, socket.socket] = {}
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(_listening(port_of(cluster.addresses[0])))
        while missing := sorted({*range(1, cluster.count)} - {*came}):
            if time.monotonic() > end:
                names = ", ".join(map(str, missing))
                raise WorkerLost(f"worker {names} did not come within {seconds:.0f} seconds")
            hello, connection = _hello(server, stack)
            if connection is None:
                continue
            if hello["addresses"] != list(cluster.addresses):
                for other in (*came.values(), connection):
                    _answer(other, _DIFFERS)
                raise _differs(hello["index"], cluster)
            # Who comes twice has been started twice, and only the last one waits.
            came[hello["index"]] = connection
        for connection in came.values():
            _answer(connection, _GO)


def _hello(server: socket.socket, stack: contextlib.ExitStack) -> tuple[dict[str, Any], socket.socket | None]:
    """What the next one says of itself; nothing where nobody came, or a stranger."""
    with contextlib.suppress(OSError, ValueError):
        connection = stack.enter_context(server.accept()[0])
        connection.settimeout(_HELLO_SECONDS)
        hello = json.loads(_line(connection))
        if isinstance(hello, dict) and {*hello} == {"index", "addresses"}:
            return hello, connection
    return {}, None


def _answer(connection: socket.socket, word: bytes) -> None:
    # Who is gone comes again, or is missed later.
    with contextlib.suppress(OSError):
        connection.sendall(word)


def _come(cluster: Cluster, end: float) -> None:
    host, _, port = cluster.addresses[0].rpartition(":")
    hello = json.dumps({"index": cluster.index, "addresses": cluster.addresses}).encode() + b"\n"
    while time.monotonic() < end:
        with (
            contextlib.suppress(OSError),
            socket.create_connection((host.strip("[]"), int(port)), _HELLO_SECONDS) as connection,
        ):
            connection.sendall(hello)
            connection.settimeout(max(end - time.monotonic(), _TRY_SECONDS))
            answer = _line(connection)
            if answer == _GO:
                return
            if answer == _DIFFERS:
                raise _differs(cluster.index, cluster)
        time.sleep(_TRY_SECONDS)
    raise WorkerLost(f"worker 0 did not come to {cluster.addresses[0]} in time")


def _line(connection: socket.socket) -> bytes:
    """What comes up to the end of a line; raises OSError where nothing more comes."""
    found = b""
    while not found.endswith(b"\n") and len(found) < _LONGEST_HELLO:
        more = connection.recv(4096)
        if not more:
            raise ConnectionError
        found += more
    return found


def _listening(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        server = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    else:
        server = socket.create_server(("", port))
    server.settimeout(_TRY_SECONDS)
    return server


def _differs(index: int, cluster: Cluster) -> InputError:
    return InputError(
        f"{TF_CONFIG}: expected the same workers for all, got others to worker {index} than to worker 0"
        f" ({', '.join(cluster.addresses)})"
    )
