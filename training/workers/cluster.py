"""TF_CONFIG: which workers train together, and which of them this process is."""

import dataclasses
import json
import socket
from typing import Any

from kmha.errors import InputError

VARIABLE = "TF_CONFIG"
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


def cluster_of(text: str | None) -> Cluster | None:
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
        raise InputError(f"{VARIABLE}: wanted JSON, given {str(text)[:60]!r} ({error})") from None
    for part in ("cluster", "task"):
        if not isinstance(given, dict) or not isinstance(given.get(part), dict):
            raise InputError(f'{VARIABLE}: wanted {_FORM}, given none of "{part}" that is an object')
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
            raise InputError(f"{VARIABLE}: wanted workers, and perhaps a chief, in cluster, given {job!r}")
        if not isinstance(addresses, list) or not addresses:
            raise InputError(f"{VARIABLE}: wanted a list of addresses for {job!r}, given {addresses!r}")
        for address in addresses:
            port_of(address)
    if len(jobs.get(CHIEF, [])) > 1:
        raise InputError(f"{VARIABLE}: wanted one chief, given {len(jobs[CHIEF])}")
    every = [address for addresses in jobs.values() for address in addresses]
    if twice := next((address for address in every if every.count(address) > 1), None):
        raise InputError(f"{VARIABLE}: wanted an address of its own for each worker, given {twice} twice")
    return jobs


def _task(task: dict[str, Any], addresses: dict[str, list[str]]) -> tuple[str, int]:
    """Type and number of this process."""
    job, number = task.get("type"), task.get("index")
    if job not in (CHIEF, WORKER):
        raise InputError(f"{VARIABLE}: wanted the task type worker or chief, given {job!r}")
    if job not in addresses:
        raise InputError(f"{VARIABLE}: wanted a task of the cluster, given {job!r}, which it has none of")
    count = len(addresses[job])
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < count:
        raise InputError(f"{VARIABLE}: wanted the index of a {job} from 0 to {count - 1}, given {number!r}")
    return job, number


def port_of(address: Any) -> int:
    """The port of "host:port"; raises InputError where it is none."""
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    if not host or not port.isascii() or not port.isdigit() or not 1 <= int(port) <= 65535:
        raise InputError(f"{VARIABLE}: wanted an address host:port, given {address!r}")
    return int(port)


def check_port(cluster: Cluster) -> None:
    """Refuses an address of this worker that another process listens at, or that the user may not use."""
    address = cluster.addresses[cluster.index]
    try:
        with socket.create_server(("", port_of(address))):
            pass
    except OSError as error:
        raise InputError(
            f"{VARIABLE}: wanted a free port for worker {cluster.index}, given {address}: {error.strerror}"
        ) from None
