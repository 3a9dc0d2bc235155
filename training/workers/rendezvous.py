"""Waits until all workers of a job are there, before TensorFlow waits: interruptible, and by name.

The chief listens at its own address; the others say who they are and wait for its word. Then TensorFlow has the
address.
"""

import contextlib
import json
import socket
import time
from typing import Any

from kmha.errors import InputError
from training.outcomes import WorkerLost
from training.workers.cluster import VARIABLE, Cluster, port_of

# For the last worker to come up: machines may have to be found and images fetched.
GATHER_SECONDS = 600.0
_TRY_SECONDS = 0.5
_HELLO_SECONDS = 5.0
_LONGEST_HELLO = 1 << 20
_GO, _DIFFERS = b"go\n", b"differs\n"


def meet(cluster: Cluster, seconds: float = GATHER_SECONDS) -> None:
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
        f"{VARIABLE}: wanted the same workers for all, given others to worker {index} than to worker 0"
        f" ({', '.join(cluster.addresses)})"
    )
