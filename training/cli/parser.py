"""The command line: TOML file and flags through one parser, errors in one line, one way to end."""

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

# What an OSError says of a disk that takes no more.
FULL = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "a file is larger than it may be",
}

# tyro's messages in the form of ours: the flag, what was wanted, what was given.
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
# An argument that was not given: its name, its help.
_MISSING = r"(--\S+ \S+|\b[A-Z]+) ([A-Z].*?)\.? \(required\)"


class _StandardError(logging.Handler):
    """Writes each message to stderr in one piece, so that threads do not break each other's lines.

    stdout is for data. The stream is looked up at each message, since programs replace it.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Writes the message and a line end."""
        if sys.stderr is not None:  # services are started without one
            sys.stderr.write(f"{record.getMessage()}\n")
            sys.stderr.flush()


logger = logging.getLogger("kmha")
if not logger.handlers:
    logger.addHandler(_StandardError())
    logger.setLevel(logging.INFO)
    logger.propagate = False


def run(command: Callable[[], int]) -> int:
    """Runs a command; wrong input becomes one line on stderr and exit status 2.

    Args:
        command: Returns the exit status.

    Returns:
        The exit status: the command's, 0 after --help, 1 when the disk is full, 2 for wrong input, 130 when
        interrupted (SIGINT, SIGTERM), 141 when nobody reads the output any more (`| head`).
    """
    # JSON is UTF-8 whatever the locale is.
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
        # What is left in the buffer must not fail once more when Python closes it.
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
        # Only --help ends so.
        return int(stop.code or 0)


def full_disk(error: OSError) -> str:
    """What to say of a disk that takes no more; any other error is raised again."""
    if error.errno not in FULL:
        raise error
    return FULL[error.errno] + (f", writing {error.filename}" if error.filename else "")


@contextlib.contextmanager
def _terminating_as_interrupt() -> Iterator[None]:
    """Lets SIGTERM end a command as Ctrl-C does, so that temporary files go."""
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
    """Settings from defaults, then the file named by --config, then flags.

    Args:
        config_type: A dataclass, perhaps of dataclasses; with a field `config` it may be given a TOML file.
        argv: Arguments; None takes the process's.
        program: How the command is called, for its help.

    Raises:
        InputError: An unknown flag or key (the nearest is suggested), a value of the wrong type or out of its
            range, a bad file.
        SystemExit: With status 0, after --help.
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
    """The point of tyro's message, without colours, frame, title, help text and advice."""
    lines = [line.strip(_FRAME) for line in _COLOUR.sub("", message).splitlines()]
    # Blocks stand between rules. The title is part of the upper rule, or without a frame a block of its own.
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
