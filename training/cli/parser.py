"""Parses flags and TOML files, reports errors in one line, and maps exceptions to exit codes."""

import contextlib
import dataclasses
import errno
import io
import logging
import os
import re
import signal
import sys
import threading
import typing
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import tyro

from kmha.errors import InputError, did_you_mean
from training.cli.bounds import check_ranges
from training.cli.exceptions import CheckpointWriteError
from training.cli.toml_file import toml_flags

Config = TypeVar("Config")

FAILED, WRONG_INPUT, INTERRUPTED, NO_READER = 1, 2, 130, 141

# Messages for OSErrors of a full disk.
FULL = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "a file is larger than it may be",
}

# Rewrites tyro's messages to `FLAG: expected X, got Y`.
_REWORDED = (
    (
        r"Error parsing (--\S+): invalid literal for int\(\) with base 10: (.*)",
        r"\1: expected a whole number, got \2",
    ),
    (r"Error parsing (--\S+): could not convert string to float: (.*)", r"\1: expected a number, got \2"),
    (
        r"Error parsing (--\S+): no type matching \{None\}\|FLOAT could be instantiated from \['(.*)'\]\.?",
        r"\1: expected a number, got '\2'",
    ),
    (r"Error parsing (--\S+): Could not find valid parse for .*: (.*)", r"\1: expected other values, got \2"),
    (r"Missing value for argument '(--[^'/ ]+).*", r"\1: expected a value, got none"),
    (
        r"[Ii]nvalid choice '(.*)' for argument '(--[^'/ ]+).*Expected one of \((.*)\) ?\.",
        r"\2: expected one of \3, got '\1'",
    ),
    (r"Unrecognized options: (.*)", r"unexpected argument \1"),
    (r"Missing from [^:]*: (.*)", r"missing \1"),
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_FRAME = "│╭╮╰╯ "
# A missing argument: its name and its help text.
_MISSING = r"(--\S+ \S+|\b[A-Z]+) ([A-Z].*?)\.? \(required\)"


class _StandardError(logging.Handler):
    """Writes each message to stderr in one call, so that lines of different threads are not mixed.

    It uses the current `sys.stderr`, which programs may replace. stdout is for data.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Writes the message and a newline."""
        if sys.stderr is not None:  # None in services
            sys.stderr.write(f"{record.getMessage()}\n")
            sys.stderr.flush()


logger = logging.getLogger("kmha")
if not logger.handlers:
    logger.addHandler(_StandardError())
    logger.setLevel(logging.INFO)
    logger.propagate = False


def run(command: Callable[[], int]) -> int:
    """Runs a command and returns its exit status; logs errors in one line on stderr.

    Args:
        command: Returns the exit status.

    Returns:
        The exit status of the command; 0 after --help, 1 for a full disk, 2 for wrong input, 130 after SIGINT or
        SIGTERM, 141 for a closed output pipe (`| head`).
    """
    # JSON is UTF-8 in every locale.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    try:
        with _terminating_as_interrupt():
            status = command()
            sys.stdout.flush()
            return status
    except InputError as error:
        logger.error(f"error: {' '.join(str(error).splitlines())}")
        return WRONG_INPUT
    except BrokenPipeError:
        # Discards the buffer, so that closing stdout does not fail again.
        with contextlib.suppress(OSError, ValueError), open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        return NO_READER
    except CheckpointWriteError as error:
        logger.error(f"error: {error}")
        return FAILED
    except OSError as error:
        logger.error(f"error: {full_disk(error)}")
        return FAILED
    except KeyboardInterrupt:
        logger.info("interrupted")
        return INTERRUPTED
    except SystemExit as stop:
        # Raised by --help only.
        return int(stop.code or 0)


def full_disk(error: OSError) -> str:
    """Returns the message for a full disk; raises any other error again."""
    if error.errno not in FULL:
        raise error
    return FULL[error.errno] + (f", writing {error.filename}" if error.filename else "")


@contextlib.contextmanager
def _terminating_as_interrupt() -> Iterator[None]:
    """Raises KeyboardInterrupt on SIGTERM, so that temporary files are removed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number, frame):
        raise KeyboardInterrupt(signal.Signals(number).name)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def parse(config_type: type[Config], argv: Sequence[str] | None, program: str) -> Config:
    """Parses settings; flags override the TOML file of --config, which overrides the defaults.

    Args:
        config_type: A dataclass, which may contain dataclasses; a field `config` enables the TOML file.
        argv: Arguments; None: those of the process.
        program: Name of the command, for its help.

    Raises:
        InputError: An unknown flag or key, a value of the wrong type or out of range, or an invalid file.
        SystemExit: Status 0 after --help.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    flags = _flag_names(config_type)
    for argument in argv:
        name = argument.split("=")[0]
        if name.startswith("--") and name.replace("_", "-") not in flags:
            raise InputError(f"unknown flag {name}{did_you_mean(name, flags)}")
    path = _config_path(argv) if "--config" in flags else None
    from_file = [] if path is None else toml_flags(path, config_type)
    config = _parse(config_type, from_file + argv, program)
    try:
        check_ranges(config)
    except InputError as error:
        flag = str(error).split(":")[0]
        is_from_file = any(word.startswith(f"{flag}=") for word in from_file) and not any(
            word.split("=")[0].replace("_", "-") == flag for word in argv
        )
        raise InputError(f"{path}: {error}" if is_from_file else str(error)) from None
    return config


def _parse(config_type: type[Config], arguments: Sequence[str], program: str) -> Config:
    messages = io.StringIO()
    try:
        with contextlib.redirect_stderr(messages):
            return tyro.cli(config_type, args=arguments, prog=program)
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise InputError(_reworded(_one_line(messages.getvalue()))) from None


def _one_line(message: str) -> str:
    """Extracts the error from tyro's message, without colors, frame, title, help text and hints."""
    lines = [line.strip(_FRAME) for line in _COLOUR.sub("", message).splitlines()]
    # Horizontal rules separate blocks. The title is in the top rule, or without a frame a separate block.
    blocks: list[list[str]] = [[]]
    for line in lines:
        if set(line) <= {"-", "─"} or "───" in line:
            blocks.append([])
        else:
            blocks[-1].append(line)
    blocks = [block for block in blocks if block]
    has_frame = "─" in message
    point = blocks[0] if has_frame or len(blocks) == 1 else blocks[1]
    return " ".join(point)


def _reworded(message: str) -> str:
    for pattern, words in _REWORDED:
        if re.fullmatch(pattern, message):
            return re.sub(_MISSING, r"\1 (\2)", re.sub(pattern, words, message))
    return message


def _config_path(argv: Sequence[str]) -> Path | None:
    path = None
    for index, argument in enumerate(argv):
        if argument == "--config" and index + 1 < len(argv):
            path = argv[index + 1]
        elif argument.startswith("--config="):
            path = argument.split("=", 1)[1]
    return None if path is None else Path(path)


def _flag_names(config_type: type, prefix: str = "") -> list[str]:
    names = [] if prefix else ["--help"]
    for name, kind in typing.get_type_hints(config_type, include_extras=True).items():
        if dataclasses.is_dataclass(kind):
            names += _flag_names(kind, f"{prefix}{name}.")  # pyright: ignore
        elif tyro.conf.Positional not in getattr(kind, "__metadata__", ()):
            flag = f"{prefix}{name}".replace("_", "-")
            names.append(f"--{flag}")
            if kind is bool:
                parent, _, last = flag.rpartition(".")
                names.append(f"--{parent}.no-{last}" if parent else f"--no-{last}")
    return names
