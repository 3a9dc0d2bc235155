"""Servers as child processes: started, waited for, ended."""

import contextlib
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence

from clients.environments import clean_environment, reason


class ServerError(Exception):
    """A server ended, or was not ready in time; the message has its own words."""


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextlib.contextmanager
def started(
    command: Sequence[str], is_ready: Callable[[], bool], seconds: float, **environment: str
) -> Iterator[None]:
    """Runs a server while the block runs.

    Args:
        command: It.
        is_ready: Whether it answers yet.
        seconds: The longest it may take to answer.
        environment: More variables for it.

    Raises:
        ServerError: It ended, or was not ready in time.
    """
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=clean_environment() | environment,
        )
        try:
            end = time.monotonic() + seconds
            while not is_ready():
                if process.poll() is not None or time.monotonic() > end:
                    output.seek(0)
                    said = reason(output.read().decode(errors="replace"))
                    raise ServerError(said if process.poll() is not None else f"not ready in time: {said}")
                time.sleep(0.3)
            yield
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
