"""Runs a worker process and exchanges JSON lines with it."""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from kmha.errors import InputError


class Crashed(Exception):
    """The process ended without a valid response; the message is one line."""


class WorkerProcess:
    """A process that exchanges one JSON object per line; as a context manager, it kills the process on exit.

    It has `environment` in addition to the environment variables of this process.
    """

    def __init__(self, command: Sequence[str], environment: dict[str, str] | None = None):
        # A file, not a pipe: a full pipe would block the worker.
        self._stderr = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={**os.environ, **(environment or {})},
            encoding="utf-8",
            # Ctrl-C reaches only this process, which ends the workers.
            start_new_session=True,
        )

    def __enter__(self) -> "WorkerProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def listen(self) -> dict[str, Any]:
        """Reads the next response; raises InputError if it reports an error, Crashed if there is no valid response."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        try:
            reply = json.loads(line)
        except ValueError:
            raise Crashed(self._last_words(line)) from None
        if "error" in reply:
            raise InputError(reply["error"])
        return reply

    def request(self, **request: object) -> dict[str, Any]:
        """Sends a request and returns the response; raises the errors of `listen`."""
        assert self._process.stdin is not None
        try:
            print(json.dumps(request, allow_nan=False), file=self._process.stdin, flush=True)
        except OSError:
            raise Crashed(self._last_words("")) from None
        return self.listen()

    def end(self) -> None:
        """Kills the process and waits for it."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._stderr):
            try:
                if stream is not None:
                    stream.close()
            except OSError:
                # The process ended before it read a request.
                continue

    def _last_words(self, line: str) -> str:
        if line:
            return f"its process gave no reply but {line.strip()[:80]!r}"
        status = self._process.wait()
        self._stderr.seek(0)
        lines = self._stderr.read().decode("utf-8", "replace").strip().splitlines()
        output = f"saying: {lines[-1].strip()}" if lines else "saying nothing"
        ended = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        return f"its process {ended}, {output}"


def has_package(package: str, python: str) -> bool:
    """Whether the Python interpreter at `python` can find a package, without importing it."""
    if python == sys.executable:
        return importlib.util.find_spec(package) is not None
    program = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    return subprocess.run([python, "-c", program], capture_output=True).returncode == 0
